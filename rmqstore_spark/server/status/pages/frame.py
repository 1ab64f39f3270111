"""What all pages share: the document around them, tables, facts, numbers and times as people read.

No page has a script, or a style of its own: the policy of the answers forbids both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final

from rmqstore_spark.base.printable import duration, rate
from rmqstore_spark.server.status import plots
from rmqstore_spark.server.status.asking import address
from rmqstore_spark.server.status.markup import Content, Markup, element

ROOT: Final = "/status"
STYLE: Final = f"{ROOT}/style.css"
REFRESH_SECONDS: Final = 10
NOT_KNOWN: Final = "-"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_MICROSECONDS: Final = 253_402_300_799_999_999  # the end of the year 9999
_MOST_NAMED: Final = 5
_PAGES: Final = (
    ("", "Overview"),
    ("topics", "Topics"),
    ("groups", "Groups"),
    ("commits", "Commits"),
    ("messages", "Messages"),
    ("log", "Log"),
)
_ABOVE: Final = {"topic": "topics", "group": "groups", "message": "messages"}
"""What the menu marks for pages that it does not have."""


@dataclass(frozen=True)
class Frame:
    """What is around a page.

    Attributes:
        stores: the names of all stores of the process.
        store: the one that the page shows.
        page: the last part of its address; "" for the overview.
        fields: the fields of its address, without `store` and `refresh`.
        refreshes: whether the browser asks again after a while; None if the page is not for that.
        taken: of when its figures are, in seconds since the epoch.
    """

    stores: Sequence[str]
    store: str
    page: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    refreshes: bool | None = None
    taken: float = 0.0

    def to(self, page: str, /, **fields: str | int | None) -> str:
        """Return the address of a page of the same store."""
        name = self.store if len(self.stores) > 1 else None
        path = f"{ROOT}/{page}" if page else ROOT
        return address(path, store=name, **fields)

    def link(self, text: Content, page: str, /, **fields: str | int | None) -> Markup:
        """Return a link to a page of the same store."""
        return element("a", text, href=self.to(page, **fields))

    def document(self, title: str, *content: Content) -> bytes:
        """Return the document with a page in it."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="refresh", content=REFRESH_SECONDS)
            if self.refreshes
            else None,
            element("title", f"{title} · {self.store} · rmqstore"),
            element("link", rel="stylesheet", href=STYLE),
        )
        body = element(
            "body",
            element("a", "Skip to content", class_="skip", href="#content"),
            element("header", self._menu(), self._stores()),
            element("main", element("h1", title), content, id="content"),
            element("footer", self._foot()),
        )
        return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n".encode()

    def _menu(self) -> Markup:
        here = _ABOVE.get(self.page, self.page)
        links = (
            element("a", text, href=self.to(page), aria_current="page" if page == here else None)
            for page, text in _PAGES
        )
        return element("nav", element("strong", "rmqstore"), links, aria_label="Pages")

    def _stores(self) -> Markup:
        if len(self.stores) == 1:
            return element("p", self.store, class_="store")
        links = (
            element(
                "a", name, href=address(ROOT, store=name),
                aria_current="true" if name == self.store else None,
            )
            for name in self.stores
        )  # fmt: skip
        return element("nav", links, aria_label="Stores", class_="store")

    def _foot(self) -> Content:
        taken = datetime.fromtimestamp(self.taken, timezone.utc)
        made = element("span", f"As of {taken.strftime('%Y-%m-%d %H:%M:%S UTC')}.")
        if self.refreshes is None:
            return made
        if self.refreshes:
            here = self.to(self.page, **self.fields)
            return [made, " ", element("a", "Stop refreshing", href=here)]
        again = self.to(self.page, **self.fields, refresh="on")
        return [made, " ", element("a", f"Refresh every {REFRESH_SECONDS} s", href=again)]


@dataclass(frozen=True)
class Head:
    """The head of a table's column.

    Attributes:
        text: what it says.
        is_number: whether the cells below are numbers.
        order: the address at which the table is ordered by this column; None if it never is.
        ordered: how it is ordered now: ascending or descending.
        is_short: whether the cells stay on one line.
    """

    text: str
    is_number: bool = False
    order: str | None = None
    ordered: str | None = None
    is_short: bool = False

    @property
    def kind(self) -> str | None:
        """The class of its cells."""
        return "number" if self.is_number else "short" if self.is_short else None


def table(heads: Sequence[Head], rows: Iterable[Sequence[Content]], caption: str) -> Markup:
    """Return a table; its caption says what the rows are."""
    classes = [head.kind for head in heads]
    top = (
        element(
            "th", head.text if head.order is None else element("a", head.text, href=head.order),
            scope="col", class_=kind, aria_sort=head.ordered,
        )
        for head, kind in zip(heads, classes, strict=True)
    )  # fmt: skip
    body = [
        element(
            "tr",
            (element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)),
        )
        for row in rows
    ]
    if not body:
        return element("p", f"{caption}: none.", class_="none")
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", top)),
        element("tbody", body),
    )  # fmt: skip
    # It can be scrolled, also with the keyboard, where it is wider than the page.
    return element("div", whole, class_="wide", tabindex=0, role="region", aria_label=caption)


def facts(given: Mapping[str, Content]) -> Markup:
    """Return names with their values."""
    pairs = (
        element("div", element("dt", name), element("dd", value)) for name, value in given.items()
    )
    return element("dl", pairs)


def section(title: str, *content: Content) -> Markup:
    """Return a part of a page."""
    return element("section", element("h2", title), content)


def cards(*given: Content) -> Markup:
    """Return figures that are side by side."""
    return element("div", given, class_="cards")


def card(title: str, value: Content, *below: Content) -> Markup:
    """Return a figure with what belongs to it."""
    return element("div", element("h2", title), element("p", value, class_="value"), below)


def plotted(
    title: str, shown: Callable[[float | None], str], values: Sequence[float], seconds: float
) -> Markup:
    """Return a figure with its past as a plot.

    Args:
        title: what it is.
        shown: returns a value as text.
        values: the past, the value of now last.
        seconds: how long the past is.
    """
    told = f"in the last {duration(seconds)}"
    most = element("p", f"up to {shown(max(values))} {told}") if values else None
    line = plots.line(values, f"{title} a second, {told}")
    return card(title, shown(values[-1] if values else None), line, most)


def pager(frame: Frame, page: str, at: int, pages: int, /, **fields: str | int | None) -> Content:
    """Return links to the neighbours of a page of a table; nothing if it has only one.

    Args:
        frame, page, fields: make the addresses.
        at: the number of the page, from 1.
        pages: how many there are.
    """
    if pages <= 1:
        return None
    before = frame.link("← Before", page, page=at - 1, **fields) if at > 1 else None
    after = frame.link("Next →", page, page=at + 1, **fields) if at < pages else None
    told = f"Page {at:,} of {pages:,}"
    return element("nav", before, element("span", told), after, class_="pager", aria_label="Table")


def of_page(rows: Sequence[object], asked: int | None, size: int) -> tuple[int, int, slice]:
    """Return which page of a table is shown, how many there are, and its rows."""
    pages = max(1, -(-len(rows) // size))
    at = min(max(1, asked or 1), pages)
    return at, pages, slice((at - 1) * size, at * size)


def named_topics(frame: Frame, names: Sequence[str]) -> Content:
    """Return links to some topics."""
    links: list[Content] = []
    for name in names[:_MOST_NAMED]:
        links += [frame.link(name, "topic", name=name), ", "]
    more = len(names) - _MOST_NAMED
    return [*links[:-1], f" and {more:,} more" if more > 0 else None]


def count(value: int) -> str:
    """Return a number of things."""
    return f"{value:,}"


def counted(value: int, thing: str) -> str:
    """Return a number with what it counts: `2 topics`."""
    return f"{value:,} {thing}{'' if value == 1 else 's'}"


def known_rate(value: float | None) -> str:
    """Return how many there are a second, if that is known."""
    return NOT_KNOWN if value is None else rate(value)


def when(microseconds: int | None) -> str:
    """Return a time, from microseconds since the epoch."""
    if microseconds is None or not 0 <= microseconds <= _MOST_MICROSECONDS:
        return NOT_KNOWN
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03} UTC"
