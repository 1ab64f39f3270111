"""`rmqstore offsets`: prints offsets as startingOffsets and endingOffsets take them."""

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
    Topics,
    open_store,
    parse_time,
)
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.cli.shared.text import json_text
from rmqstore_spark.errors import OptionError, TopicNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

__all__ = ["offsets"]

_Rule: TypeAlias = "Callable[[str, Queue], int | None]"

_Stores = typer.Argument(
    metavar="STORE...", help="Store directories, or URLs of fsspec.", show_default=False
)
_BrokerNames = typer.Option(
    "--broker-name",
    metavar="NAME",
    help="What to call the stores, in their order; by default after their folders.",
    show_default=False,
)
_Earliest = typer.Option("--earliest", help="The first message that each queue still has.")
_Latest = typer.Option("--latest", help="Behind the last message of each queue (the default).")
_At = typer.Option(
    "--at",
    metavar="TIME",
    help="The first message stored at or after this time (milliseconds or ISO-8601); the end of "
    "a queue that has none.",
    show_default=False,
)
_Group = typer.Option(
    "--group",
    "-g",
    metavar="GROUP",
    help="Where a consumer group stands; the first message of a queue that it never read.",
    show_default=False,
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
    """Print offsets as the Spark source's options take them.

    That is the JSON of startingOffsets and endingOffsets. One store gives {"topic":{"0":23}},
    several give {"topic":{"broker-a":{"0":23}}}. For a group only the topics that it reads are
    printed.
    """
    if sum((earliest, latest, at is not None, group is not None)) > 1:
        raise OptionError("--earliest, --latest, --at and --group contradict each other: give one.")
    names: Sequence[str | None] = broker_names or [None] * len(store_paths)
    if len(names) != len(store_paths):
        raise OptionError(
            f"--broker-name is given {len(names)} time(s) for {len(store_paths)} store(s): give "
            "it for each, in their order, or leave it out."
        )
    if commitlog_paths and len(store_paths) > 1:
        raise OptionError("--commitlog-path belongs to one store: ask for each store by itself.")
    time = parse_time("--at", at)
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        for path, name in zip(store_paths, names, strict=True):
            store = stack.enter_context(open_store(path, name, commitlog_paths))
            if store.lacks_queues:
                store.require_queues(
                    "Telling offsets",
                    "Leave startingOffsets and endingOffsets out: a batch query reads such a store "
                    "from end to end",
                )
            other = stores.setdefault(store.broker_name, store)
            if other is not store:
                raise OptionError(
                    f"{other.path} and {store.path} are both called {store.broker_name!r}: give "
                    "each its own --broker-name."
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
            there = sorted({n for s in stores.values() for n in s.directory.topology.queues})
            raise TopicNotFoundError(
                f"There is no topic {name!r} in {' or '.join(s.path for s in stores.values())}. "
                f"There are: {', '.join(there) or 'none'}."
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
            f"There is no consumer group {group!r} in "
            f"{' or '.join(store.path for store in stores.values())}. There are: "
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
                f"group {group} stands at {offset} of {queue.topic}/{queue.queue_id}, which holds "
                f"{queue.min_offset} to {queue.max_offset} now: {held} is given."
            )
        return held

    return rule
