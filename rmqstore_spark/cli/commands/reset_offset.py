"""`rmqstore reset-offset`: sets the offsets of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqstore_spark.cli.shared.choosing import Choice
from rmqstore_spark.cli.shared.connection import EndpointOf, connect
from rmqstore_spark.cli.shared.parameters import QueueIds, open_store, parse_time
from rmqstore_spark.cli.shared.tables import Column, print_table
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from rmqstore_spark.reader.queue import Queue

_COLUMNS = (
    Column("topic", least=12),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("new", right=True),
    Column("max", right=True),
    Column("lag", right=True),
)
_Group = typer.Argument(metavar="GROUP", help="Name of the consumer group.", show_default=False)
_Topic = typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.", show_default=False)
_Earliest = typer.Option("--earliest", help="To the first message in each queue.")
_Latest = typer.Option("--latest", help="To the end of each queue.")
_At = typer.Option(
    "--at",
    metavar="TIME",
    help="To the first message stored at or after this time (milliseconds or ISO-8601), or to the "
    "queue's end if it has none.",
    show_default=False,
)
_Offset = typer.Option(
    "--offset",
    min=0,
    metavar="N",
    help="To this offset, in the queues that --queue names.",
    show_default=False,
)
_Yes = typer.Option("--yes", help="Set the offsets. Without it, only show what would change.")


def reset_offset(
    endpoint: EndpointOf,
    group: Annotated[str, _Group],
    topic: Annotated[str, _Topic],
    queue_ids: QueueIds = None,
    earliest: Annotated[bool, _Earliest] = False,
    latest: Annotated[bool, _Latest] = False,
    at: Annotated[str | None, _At] = None,
    offset: Annotated[int | None, _Offset] = None,
    yes: Annotated[bool, _Yes] = False,
) -> None:
    """Set the offsets of a consumer group in a topic.

    Stop the group's consumers first: they hold their offsets in memory and commit them again.
    Without --yes, nothing is changed.
    """
    if sum((earliest, latest, at is not None, offset is not None)) != 1:
        raise OptionError("Give one of --earliest, --latest, --at and --offset.")
    if offset is not None and not queue_ids:
        raise OptionError("--offset needs --queue: the offsets of different queues differ.")
    time = parse_time("--at", at)

    def target(queue: Queue) -> int:
        if offset is not None:
            if offset > queue.max_offset:
                raise OptionError(
                    f"--offset {offset} is past the end of queue {queue.queue_id} of the topic "
                    f"{topic}: it ends at {queue.max_offset}."
                )
            return offset
        if time is not None:
            found = queue.offset_at(time)
            return queue.max_offset if found is None else found
        return queue.min_offset if earliest else queue.max_offset

    from rmqstore_spark.reader.groups import group_offsets

    with open_store(endpoint, None, None) as store:
        held = {
            entry.queue_id: entry.offset
            for entry in group_offsets(store)
            if entry.group == group and entry.topic == topic
        }
        chosen = Choice([topic], queue_ids, everything=True).queues(store)
        rows = [(queue.queue_id, target(queue), queue.max_offset) for queue in chosen]
    outcome = "Nothing was changed. Add --yes to set these offsets."
    if yes:
        with connect(endpoint) as client:
            offsets = {topic: {queue_id: new for queue_id, new, _ in rows}}
            changed = client.commit_offsets(group, offsets, reset=True)
        outcome = f"{changed} offset(s) of group {group} have changed"
    print_table(
        _COLUMNS,
        [
            [topic, *map(str, (queue_id, held.get(queue_id, "-"), new, end, max(0, end - new)))]
            for queue_id, new, end in rows
        ],
    )
    typer.echo(outcome)
