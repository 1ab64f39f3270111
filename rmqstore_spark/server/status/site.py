"""Finds the page of a request, and checks that its account may see it.

Figures need what `rmqstore stats` needs, messages SUB of their topic, the log an administrator.
Pages are made for a few at a time, and the browser reads for one at a time: a body may take 64 MiB
to unpack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.errors import OptionError, RefusedError, RmqStoreError, TopicNotFoundError
from rmqstore_spark.server.callers import ADMIN, Caller, Needs, of_topics
from rmqstore_spark.server.status import browser, views
from rmqstore_spark.server.status.asking import Asked, StatusAnswer, Unanswerable
from rmqstore_spark.server.status.guard import caller_of, check_origin
from rmqstore_spark.server.status.history import History, Queues
from rmqstore_spark.server.status.markup import element
from rmqstore_spark.server.status.pages import commits, groups, log, messages, overview, topics
from rmqstore_spark.server.status.pages.frame import ROOT, STYLE, Frame
from rmqstore_spark.server.status.problems import Problems
from rmqstore_spark.server.status.watched import (
    SAMPLE_SECONDS,
    Figures,
    Sampling,
    WatchedStore,
)

if TYPE_CHECKING:
    from rmqstore_spark.broker.acl.accounts import AccountSource
    from rmqstore_spark.server.stores.served import StoreService

_AT_ONCE: Final = 4
_WAIT_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 1.0
_MOST_CHOICES: Final = 500
_FIGURES: Final = Needs(everywhere=Right.ANY)
_GROUPS: Final = Needs(everywhere=Right.SUB)

_Page = Callable[["_Question"], bytes]


class StatusSite:
    """Answers requests for pages, from its construction until `close`. Thread-safe.

    Args:
        service: the stores.
        process: returns the figures of the connections to the process.
        accounts: has the accounts; None if nobody needs one.
        seconds: between two samples of the figures.
    """

    def __init__(
        self,
        service: StoreService,
        process: Callable[[], Mapping[str, Any]],
        accounts: AccountSource | None,
        seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self.service = service
        self.process = process
        fresh = min(_FRESH_SECONDS, seconds)
        stores = service.stores
        self.stores = {store.name: WatchedStore(store, fresh, len(stores)) for store in stores}
        self.problems = Problems()
        self._accounts = accounts
        self._making = threading.BoundedSemaphore(_AT_ONCE)
        self._reading = threading.BoundedSemaphore(1)
        self._style = files(__package__).joinpath("style.css").read_bytes()
        self._sampling = Sampling(list(self.stores.values()), seconds)

    def close(self) -> None:
        """Take no more samples, and keep no more lines of the log."""
        self._sampling.close()
        self.problems.close()

    def answer(self, target: str, host: str, headers: Mapping[str, str]) -> StatusAnswer:
        """Answer a request.

        Args:
            target: its path and query.
            host: the address of the client.
            headers: those of `asking.HEADERS` that the request has.
        """
        try:
            asked = Asked.of(target, host, headers)
            check_origin(asked)
            if asked.path == STYLE:  # it says nothing about the stores
                return StatusAnswer(self._style, "text/css; charset=utf-8")
            return self._page(asked)
        except Unanswerable as error:
            return _told(error.status, error.text, *error.headers)

    def _page(self, asked: Asked) -> StatusAnswer:
        name = asked.path.removeprefix(ROOT).removeprefix("/")
        page = _PAGES.get(name)
        if page is None:
            raise Unanswerable(HTTPStatus.NOT_FOUND, "There is no such page.")
        caller = caller_of(asked, self._accounts)
        with self.taken(self._making):
            question = _Question(self, asked, name, caller)
            try:
                return StatusAnswer(page(question))
            except RefusedError as error:
                raise Unanswerable(HTTPStatus.FORBIDDEN, str(error)) from None
            except TopicNotFoundError:  # its text names all topics
                raise Unanswerable(
                    HTTPStatus.NOT_FOUND, "There is no such topic or queue."
                ) from None
            except OptionError as error:  # such as offsets that have expired
                raise Unanswerable(HTTPStatus.NOT_FOUND, str(error)) from None
            except (RmqStoreError, OSError) as error:
                raise Unanswerable(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None

    def reading(self) -> Any:
        """Take the one place of those who read messages, within a context."""
        return self.taken(self._reading)

    @contextmanager
    def taken(self, places: threading.BoundedSemaphore) -> Iterator[None]:
        """Take a place, within the context.

        Raises:
            Unanswerable: none becomes free.
        """
        if not places.acquire(timeout=_WAIT_SECONDS):
            raise Unanswerable(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "Pages are being made for others. Open the page again.",
                ("Retry-After", "5"),
            )
        try:
            yield
        finally:
            places.release()


class _Question:
    """A request for a page of a store, and what the page needs to be made.

    Args:
        site: has the stores.
        asked: the request.
        page: its page.
        caller: who asks.

    Raises:
        Unanswerable: there is no such store.
    """

    def __init__(self, site: StatusSite, asked: Asked, page: str, caller: Caller) -> None:
        self.site = site
        self.asked = asked
        self._caller = caller
        names = list(site.stores)
        name = asked.text("store") or names[0]
        if name not in site.stores:
            raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no store {name[:127]}.")
        self.watched = site.stores[name]
        self.store = self.watched.store
        self._page = page

    def require(self, needs: Needs) -> None:
        """Refuse who may not see the page.

        Raises:
            RefusedError: its account lacks a right.
        """
        self.store.require(self._caller, needs)

    def may(self, needs: Needs) -> bool:
        """Return whether the account has some rights."""
        try:
            self.require(needs)
        except RefusedError:
            return False
        return True

    @cached_property
    def figures(self) -> Figures:
        """The figures of the store."""
        return self.watched.figures()

    @property
    def queues(self) -> Queues:
        """The queues of the store."""
        found: Queues = self.figures.stats.get("queues", {})
        return found

    @property
    def frame(self) -> Frame:
        """What is around the page."""
        fields = {key: at for key, at in self.asked.fields.items() if key not in _OF_FRAME}
        refreshes = None if self._page in _STILL else self.asked.text("refresh") == "on"
        names = list(self.site.stores)
        return Frame(names, self.store.name, self._page, fields, refreshes, self.figures.taken)

    def topic_lines(self, containing: str = "") -> list[views.TopicLine]:
        """Return the topics of the store."""
        rates = self.watched.look_back(History.rates)
        return views.topic_lines(self.queues, rates, containing)

    def chosen(self, name: str, choices: Sequence[str]) -> str:
        """Return a field that is one of some words; the first of them if it is not."""
        given = self.asked.text(name)
        return given if given in choices else choices[0]


# ---- the pages ---------------------------------------------------------------------------------


def _overview(question: _Question) -> bytes:
    question.require(_FIGURES)
    watched = question.watched
    series = watched.look_back(
        lambda past: overview.Series(
            past.messages(), past.total("commitLogMaxOffset"), past.total("commits"),
            past.total("readBytes"), past.seconds,
        )
    )  # fmt: skip
    return overview.overview(
        question.frame, question.figures.stats, question.site.process(), _settings(question),
        series, question.topic_lines(),
        question.site.problems.newest(overview.MOST_PROBLEMS) if question.may(ADMIN) else None,
    )  # fmt: skip


def _settings(question: _Question) -> overview.Settings | None:
    try:
        writer = question.store.writer
    except RefusedError:  # it is served read-only
        return None
    config = writer.config
    master = config.ha_master_address if writer.role.follows else ""
    return overview.Settings(str(writer.role), master, config.file_reserved_time, config.archive_to)


def _topics(question: _Question) -> bytes:
    question.require(_FIGURES)
    containing = question.asked.text("find")
    order = question.chosen("order", tuple(topics.ORDERS))
    lines = question.topic_lines(containing)
    return topics.topics_page(
        question.frame, lines, order, containing, question.asked.number("page")
    )


def _topic(question: _Question) -> bytes:
    question.require(_FIGURES)
    name = question.asked.needed("name")
    rates = question.watched.look_back(History.rates)
    lines = views.queue_lines(question.queues, rates, name)
    if not lines:
        raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no topic {name[:255]} with queues.")
    past, seconds = question.watched.look_back(
        lambda history: (history.messages(name), history.seconds)
    )
    return topics.topic_page(
        question.frame, name, lines, past, seconds, question.asked.number("page")
    )


def _groups(question: _Question) -> bytes:
    question.require(_GROUPS)
    connected = question.site.service.consumer_groups()
    with question.store.reader() as store:
        progress = views.progress_lines(store, question.queues)
    lines = views.group_lines(
        progress, {name: len(group.members) for name, group in connected.items()}
    )
    order = question.chosen("order", groups.ORDERS)
    return groups.groups_page(question.frame, lines, order, question.asked.number("page"))


def _group(question: _Question) -> bytes:
    question.require(_GROUPS)
    name = question.asked.needed("name")
    with question.store.reader() as store:
        progress = views.progress_lines(store, question.queues)
    own = [one for one in progress if one.group == name]
    connected = question.site.service.consumer_groups().get(name)
    if not own and connected is None:
        raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no consumer group {name[:255]}.")
    return groups.group_page(question.frame, name, own, connected, question.asked.number("page"))


def _commits(question: _Question) -> bytes:
    question.require(_FIGURES)
    with question.store.reader() as store:
        lines = views.writer_lines(store, question.queues)
    return commits.commits_page(question.frame, lines, question.asked.number("page"))


def _messages(question: _Question) -> bytes:
    asked = question.asked
    wanted = messages.Wanted(
        asked.text("topic"), asked.number("queue"), asked.number("offset"), asked.text("key"),
        asked.text("id"),
    )  # fmt: skip
    choices = list(question.queues)[:_MOST_CHOICES] if question.may(_FIGURES) else []
    found = None
    if wanted.topic or wanted.msg_id:
        with question.site.reading():
            wanted, found = _found(question, wanted)
    elif wanted.key:
        raise Unanswerable(HTTPStatus.BAD_REQUEST, "A search for a key needs a topic.")
    return messages.messages_page(question.frame, wanted, choices, found)


def _found(
    question: _Question, wanted: messages.Wanted
) -> tuple[messages.Wanted, messages.FoundMessages]:
    """Return what is asked for, made complete, and the messages."""
    if wanted.topic:
        question.require(of_topics((wanted.topic,), Right.SUB))
    key = wanted.key or wanted.msg_id
    if wanted.msg_id:
        with question.store.reader() as store:
            one = browser.of_id(store, wanted.msg_id)
        # Who may not read the message does not learn that there is one.
        if one is not None and question.may(of_topics((one.topic,), Right.SUB)):
            return wanted, messages.FoundMessages((one,))
        if not wanted.topic:
            return wanted, messages.FoundMessages(())
    if key:
        with question.store.reader() as store:
            return wanted, messages.FoundMessages(browser.of_key(store, wanted.topic, key))
    return _of_queue(question, wanted)


def _of_queue(
    question: _Question, wanted: messages.Wanted
) -> tuple[messages.Wanted, messages.FoundMessages]:
    lines = views.queue_lines(question.queues, {}, wanted.topic)
    queue_id = wanted.queue_id
    line = next((one for one in lines if queue_id is None or one.queue_id == queue_id), None)
    if line is None:
        raise Unanswerable(
            HTTPStatus.NOT_FOUND, f"{wanted.topic[:255]} has no such queue with messages."
        )
    newest = max(line.first, line.end - browser.LISTED)
    start = newest if wanted.offset is None else min(max(wanted.offset, line.first), line.end)
    with question.store.reader() as store:
        listed = browser.of_queue(store, line.topic, line.queue_id, start, line.end)
    complete = messages.Wanted(line.topic, line.queue_id, start)
    return complete, messages.FoundMessages(listed, (line.first, line.end), start)


def _message(question: _Question) -> bytes:
    asked = question.asked
    topic = asked.needed("topic")
    queue_id, offset = asked.number("queue"), asked.number("offset")
    question.require(of_topics((topic,), Right.SUB))
    if queue_id is None or offset is None:
        raise Unanswerable(HTTPStatus.BAD_REQUEST, "The address lacks queue or offset.")
    with question.site.reading(), question.store.reader() as store:
        found = browser.whole(store, topic, queue_id, offset)
    if found is None:
        raise Unanswerable(
            HTTPStatus.NOT_FOUND, "The message has expired, or is damaged: run rmqstore verify."
        )
    return messages.message_page(question.frame, found, asked.text("form"))


def _log(question: _Question) -> bytes:
    question.require(ADMIN)
    return log.log_page(question.frame, question.site.problems.newest())


_PAGES: Final[dict[str, _Page]] = {
    "": _overview,
    "topics": _topics,
    "topic": _topic,
    "groups": _groups,
    "group": _group,
    "commits": _commits,
    "messages": _messages,
    "message": _message,
    "log": _log,
}
_STILL: Final = ("messages", "message")
"""The pages that are read for longer, and never refreshed."""
_OF_FRAME: Final = ("store", "refresh")


def _told(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> StatusAnswer:
    """Return an answer that says in words what is wrong."""
    title = f"{status.value} {status.phrase}"
    document = element(
        "html",
        element(
            "head", element("meta", charset="utf-8"), element("title", title),
            element("link", rel="stylesheet", href=STYLE),
        ),
        element(
            "body",
            element(
                "main", element("h1", title), element("p", text),
                element("p", element("a", "Overview", href=ROOT), " · ",
                        element("a", "Messages", href=f"{ROOT}/messages")),
            ),
        ),
        lang="en",
    )  # fmt: skip
    return StatusAnswer(f"<!DOCTYPE html>\n{document}\n".encode(), status=status, headers=headers)
