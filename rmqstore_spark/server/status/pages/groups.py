"""The pages of consumer groups: all of them, and the progress and the consumers of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.server.status.markup import Markup, element
from rmqstore_spark.server.status.pages.frame import (
    NOT_KNOWN,
    Frame,
    Head,
    count,
    counted,
    named_topics,
    of_page,
    pager,
    section,
    table,
)
from rmqstore_spark.server.status.views import GroupLine, ProgressLine

if TYPE_CHECKING:
    from rmqstore_spark.broker.core.clients import Group

ROWS: Final = 100
_MOST_MEMBERS: Final = 200
ORDERS: Final = ("lag", "name")


def groups_page(frame: Frame, lines: Sequence[GroupLine], order: str, asked: int | None) -> bytes:
    """Return the page of all groups.

    Args:
        frame: around it.
        lines: the groups by name.
        order: one of ORDERS.
        asked: the number of the page of the table.
    """
    ordered = sorted(lines, key=lambda line: -line.lag) if order == "lag" else lines
    at, pages, rows = of_page(ordered, asked, ROWS)
    heads = (
        Head("Group", order=frame.to("groups", order="name"),
             ordered="ascending" if order == "name" else None),
        Head("Topics"),
        Head("Consumers", is_number=True),
        Head("Lag", is_number=True, order=frame.to("groups", order="lag"),
             ordered="descending" if order == "lag" else None),
    )  # fmt: skip
    shown = [
        (
            frame.link(line.name, "group", name=line.name),
            named_topics(frame, line.topics),
            count(line.members) if line.members else NOT_KNOWN,
            count(line.lag),
        )
        for line in ordered[rows]
    ]
    return frame.document(
        "Groups",
        element(
            "p",
            "Lag is how many messages of its topics a group has not consumed. The offsets of "
            "groups are those that were written last, up to some seconds ago.",
        ),
        table(heads, shown, "Consumer groups"),
        pager(frame, "groups", at, pages, order=order),
    )


def group_page(
    frame: Frame,
    name: str,
    progress: Sequence[ProgressLine],
    connected: Group | None,
    asked: int | None,
) -> bytes:
    """Return the page of a group.

    Args:
        frame: around it.
        name: its name.
        progress: its offsets.
        connected: its connected consumers; None if there are none.
        asked: the number of the page of the table of queues.
    """
    at, pages, rows = of_page(progress, asked, ROWS)
    heads = (
        Head("Topic"), Head("Queue", is_number=True), Head("Offset", is_number=True),
        Head("Next offset", is_number=True), Head("Lag", is_number=True), Head("Browse"),
    )  # fmt: skip
    shown = [
        (
            frame.link(one.topic, "topic", name=one.topic),
            count(one.queue_id),
            count(one.offset),
            NOT_KNOWN if one.end is None else count(one.end),
            count(one.lag),
            frame.link("At the offset", "messages", topic=one.topic, queue=one.queue_id,
                       offset=one.offset) if one.lag else None,
        )
        for one in progress[rows]
    ]  # fmt: skip
    lag = sum(one.lag for one in progress)
    return frame.document(
        name,
        element("p", f"It has not consumed {counted(lag, 'message')}."),
        table(heads, shown, "Queues"),
        pager(frame, "group", at, pages, name=name),
        _consumers(connected),
    )


def _consumers(connected: Group | None) -> Markup:
    heads = (Head("Consumer"), Head("Address"), Head("Language"))
    members = () if connected is None else list(connected.members.items())
    rows = [
        (member.client_id, peer.peer, f"{member.language} {member.version}")
        for peer, member in members[:_MOST_MEMBERS]
    ]
    more = len(members) - len(rows)
    told: Mapping[str, object] = {} if connected is None else connected.told.subscriptions
    asks = ", ".join(sorted(told))
    return section(
        "Consumers",
        element("p", f"{connected.told.model}, {connected.told.kind}, of {asks}")
        if connected is not None
        else None,
        table(heads, rows, "Connected consumers"),
        element("p", f"and {more:,} more") if more else None,
    )
