"""The pages of topics: all of them, and the queues of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rmqstore_spark.server.status.markup import Markup, element
from rmqstore_spark.server.status.pages.frame import (
    Frame,
    Head,
    card,
    cards,
    count,
    counted,
    known_rate,
    of_page,
    pager,
    plotted,
    table,
)
from rmqstore_spark.server.status.views import QueueLine, TopicLine

ROWS: Final = 100
ORDERS: Final[dict[str, tuple[str, Callable[[TopicLine], Any]]]] = {
    "name": ("ascending", lambda line: line.name),
    "queues": ("descending", lambda line: -line.queues),
    "messages": ("descending", lambda line: -line.messages),
    "rate": ("descending", lambda line: -(line.rate or 0.0)),
}
"""The orders of the table of topics: its direction, and the key."""

_HEADS: Final = {"name": "Topic", "queues": "Queues", "messages": "Messages", "rate": "Rate"}


def topics_page(
    frame: Frame, lines: Sequence[TopicLine], order: str, containing: str, asked: int | None
) -> bytes:
    """Return the page of all topics.

    Args:
        frame: around it.
        lines: the topics whose names contain something, by name.
        order: one of ORDERS.
        containing: what they contain.
        asked: the number of the page of the table.
    """
    ordered = sorted(lines, key=ORDERS[order][1])
    at, pages, rows = of_page(ordered, asked, ROWS)
    find = element(
        "form",
        element("label", "Name contains ", element("input", name="find", value=containing)),
        element("input", type="hidden", name="store", value=frame.store),
        element("button", "Find"),
        class_="find", action=frame.to("topics").partition("?")[0], role="search",
    )  # fmt: skip
    queues = sum(line.queues for line in lines)
    return frame.document(
        "Topics",
        find,
        element("p", f"{counted(len(lines), 'topic')}, {counted(queues, 'queue')}."),
        topic_table(frame, ordered[rows], order, containing),
        pager(frame, "topics", at, pages, order=order, find=containing),
    )


def topic_table(
    frame: Frame, lines: Sequence[TopicLine], order: str | None = None, containing: str = ""
) -> Markup:
    """Return a table of topics.

    Args:
        frame: of its page.
        lines: the topics.
        order: by which they are ordered, and the reader can change that; None if not.
        containing: what the names contain.
    """
    heads = [
        Head(
            text,
            name != "name",
            frame.to("topics", order=name, find=containing) if order else None,
            ORDERS[name][0] if name == order else None,
        )
        for name, text in _HEADS.items()
    ]
    rows = [
        (
            [
                frame.link(line.name, "topic", name=line.name),
                element("small", " system") if line.is_system else None,
            ],
            count(line.queues),
            count(line.messages),
            known_rate(line.rate),
        )
        for line in lines
    ]
    return table(heads, rows, "Topics")


def topic_page(
    frame: Frame,
    topic: str,
    lines: Sequence[QueueLine],
    past: Sequence[float],
    seconds: float,
    asked: int | None,
) -> bytes:
    """Return the page of a topic: its queues.

    Args:
        frame: around it.
        topic: its name.
        lines: its queues.
        past: messages a second, the last of now.
        seconds: how long that is.
        asked: the number of the page of the table.
    """
    at, pages, chosen = of_page(lines, asked, ROWS)
    heads = (
        Head("Queue", is_number=True), Head("First offset", is_number=True),
        Head("Next offset", is_number=True), Head("Messages", is_number=True),
        Head("Rate", is_number=True), Head("Browse"),
    )  # fmt: skip
    rows = [
        (
            count(line.queue_id), count(line.first), count(line.end), count(line.messages),
            known_rate(line.rate),
            frame.link("Newest", "messages", topic=topic, queue=line.queue_id),
        )
        for line in lines[chosen]
    ]  # fmt: skip
    messages, held = sum(line.messages for line in lines), counted(len(lines), "queue")
    return frame.document(
        topic,
        cards(
            plotted("Messages", known_rate, past, seconds),
            card("In the topic", count(messages), element("p", f"messages in {held}")),
        ),
        table(heads, rows, "Queues"),
        pager(frame, "topic", at, pages, name=topic),
    )  # fmt: skip
