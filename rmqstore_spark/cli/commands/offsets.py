"""`rmqstore offsets`, `reset-offset`: print offsets as Spark takes them; set those of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rmqstore_spark.cli.shared.choosing import Choice, holds_topic
from rmqstore_spark.cli.shared.parameters import (
    AllTopics,
    AsJson,
    CommitLogPaths,
    MasterOf,
    QueueIds,
    StoreAt,
    Topics,
    connect,
    master_of,
    parse_time,
)
from rmqstore_spark.cli.shared.tables import Column, json_text, print_table
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.layout.constants import is_system_topic

if TYPE_CHECKING:
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

_Rule: TypeAlias = "Callable[[str, Queue], int | None]"

_Stores = typer.Argument(
    metavar="STORE...", help="Store directories, or URLs that fsspec supports."
)
_BrokerNames = typer.Option(
    "--broker-name",
    metavar="NAME",
    help="Name of a store. Repeat it for each, in their order. By default the names of their "
    "folders.",
)
_Earliest = typer.Option("--earliest", help="Offset of the first message in each queue.")
_Latest = typer.Option(
    "--latest", help="Offset after the last message in each queue (the default)."
)
_At = typer.Option(
    "--at",
    metavar="TIME",
    help="Offset of the first message stored at or after this time (milliseconds or "
    "ISO-8601), or the queue's end if it has none.",
)
_Group = typer.Option(
    "--group",
    "-g",
    metavar="GROUP",
    help="Offset of this consumer group; for a queue that it never read, of the first message.",
)


def offsets(
    store_paths: Annotated[list[str], _Stores],
    earliest: Annotated[bool, _Earliest] = False,
    latest: Annotated[bool, _Latest] = False,
    at: Annotated[str | None, _At] = None,
    group: Annotated[str | None, _Group] = None,
    topics: Topics = None,
    everything: AllTopics = False,
    as_json: AsJson = False,  # noqa: ARG001  # the output is always JSON
    broker_names: Annotated[list[str] | None, _BrokerNames] = None,
    commitlog_paths: CommitLogPaths = None,
) -> None:
    """Print offsets in the form of the Spark source's options.

    The output is the JSON of startingOffsets and endingOffsets: {"topic":{"0":23}} for one store,
    {"topic":{"broker-a":{"0":23}}} for several. With --group, it contains only the topics that the
    group reads.
    """
    if sum((earliest, latest, at is not None, group is not None)) > 1:
        raise OptionError(
            "Options --earliest, --latest, --at and --group contradict each other: give only one."
        )
    names: Sequence[str | None] = broker_names or [None] * len(store_paths)
    if len(names) != len(store_paths):
        raise OptionError(
            f"Option --broker-name was given {len(names)} time(s) for {len(store_paths)} "
            "store(s): give it once for each store, in their order, or remove it."
        )
    if commitlog_paths and len(store_paths) > 1:
        raise OptionError(
            "Option --commitlog-path works with one store only: run the command for each store "
            "separately."
        )
    time = parse_time("--at", at)
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        for path, name in zip(store_paths, names, strict=True):
            store = stack.enter_context(StoreAt(path, name, commitlog_paths).open())
            if store.lacks_queues:
                store.require_queues(
                    "Telling offsets",
                    "Read all of its messages: `rmqstore read`, or a batch query without "
                    "startingOffsets and endingOffsets",
                )
            other = stores.setdefault(store.broker_name, store)
            if other is not store:
                raise OptionError(
                    f"{other.path} and {store.path} are both called {store.broker_name!r}: give a "
                    "different --broker-name for each."
                )
        found = _find(stores, topics, everything, _rule(stores, earliest, time, group))
    typer.echo(json_text(found))


def _find(
    stores: Mapping[str, Store],
    topics: Sequence[str] | None,
    everything: bool,
    rule: _Rule,
) -> dict[str, Any]:
    """Return offsets by topic, then by broker if there are several stores, then by queue."""
    for name in topics or ():
        if not any(holds_topic(store, name) for store in stores.values()):
            known = {n for s in stores.values() for n in s.directory.topology.queues}
            there = sorted(n for n in known if not is_system_topic(n))
            raise TopicNotFoundError(
                f"Topic {name!r} does not exist in "
                f"{' or '.join(s.path for s in stores.values())}. Existing topics: "
                f"{', '.join(there) or 'none'}."
            )
    found: dict[str, Any] = {}
    for broker, store in stores.items():
        for queue in Choice(topics, None, everything).queues(store, missing_ok=True):
            offset = rule(broker, queue)
            if offset is None:
                continue
            by_queue = found.setdefault(queue.topic, {})
            if len(stores) > 1:
                by_queue = by_queue.setdefault(broker, {})
            by_queue[str(queue.queue_id)] = offset
    return found


def _rule(
    stores: Mapping[str, Store], earliest: bool, time: int | None, group: str | None
) -> _Rule:
    """Return the function that finds the offset of a queue."""
    if earliest:
        return lambda _, queue: queue.min_offset
    if time is not None:
        return lambda _, queue: _at_time(queue, time)
    if group is not None:
        return _of_group(stores, group)
    return lambda _, queue: queue.max_offset


def _at_time(queue: Queue, time: int) -> int:
    found = queue.offset_at(time)
    return queue.max_offset if found is None else found


def _of_group(stores: Mapping[str, Store], group: str) -> _Rule:
    """Return the function that finds a group's offsets, for the topics that it reads."""
    from rmqstore_spark.reader.groups import group_offsets

    known = set()
    progress = {}
    reads = set()
    for broker, store in stores.items():
        for entry in group_offsets(store):
            known.add(entry.group)
            if entry.group == group:
                progress[broker, entry.topic, entry.queue_id] = entry.offset
                reads.add((broker, entry.topic))
    if group not in known:
        raise OptionError(
            f"Consumer group {group!r} does not exist in "
            f"{' or '.join(store.path for store in stores.values())}. Existing groups: "
            f"{', '.join(sorted(known)) or 'none'}."
        )

    def rule(broker: str, queue: Queue) -> int | None:
        if (broker, queue.topic) not in reads:
            return None
        key = (broker, queue.topic, queue.queue_id)
        offset = progress.get(key, queue.min_offset)
        held = min(max(offset, queue.min_offset), queue.max_offset)
        if held != offset:
            say(
                f"the offset of group {group} is {offset} in queue "
                f"{queue.topic}/{queue.queue_id}, which now holds {queue.min_offset} to "
                f"{queue.max_offset}: {held} is used."
            )
        return held

    return rule


_COLUMNS = (
    Column("topic", least=12),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("new", right=True),
    Column("max", right=True),
    Column("lag", right=True),
)
_ResetGroup = typer.Argument(metavar="GROUP", help="Name of the consumer group.")
_Topic = typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")
_ToEarliest = typer.Option("--earliest", help="To the first message in each queue.")
_ToLatest = typer.Option("--latest", help="To the end of each queue.")
_ToTime = typer.Option(
    "--at",
    metavar="TIME",
    help="To the first message stored at or after this time (milliseconds or ISO-8601), or to the "
    "queue's end if it has none.",
)
_Offset = typer.Option(
    "--offset", min=0, metavar="N", help="To this offset, in the queues that --queue names."
)
_Yes = typer.Option("--yes", help="Set the offsets. Without it, only show what would change.")


def reset_offset(
    endpoint: MasterOf,
    group: Annotated[str, _ResetGroup],
    topic: Annotated[str, _Topic],
    queue_ids: QueueIds = None,
    earliest: Annotated[bool, _ToEarliest] = False,
    latest: Annotated[bool, _ToLatest] = False,
    at: Annotated[str | None, _ToTime] = None,
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
            return _at_time(queue, time)
        return queue.min_offset if earliest else queue.max_offset

    from rmqstore_spark.reader.groups import group_offsets

    master = master_of(endpoint)
    with StoreAt(master).open() as store:
        held = {
            entry.queue_id: entry.offset
            for entry in group_offsets(store)
            if entry.group == group and entry.topic == topic
        }
        chosen = Choice([topic], queue_ids, everything=True).queues(store)
        rows = [(queue.queue_id, target(queue), queue.max_offset) for queue in chosen]
    outcome = "Nothing was changed. Add --yes to set these offsets."
    if yes:
        with connect(master) as client:
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
