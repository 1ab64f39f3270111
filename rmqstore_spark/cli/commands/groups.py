"""`rmqstore groups`: shows the offsets and the lag of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqstore_spark.cli.shared.choosing import holds_topic
from rmqstore_spark.cli.shared.parameters import AsJson, StoreAt, Topics
from rmqstore_spark.cli.shared.tables import Column, json_text, print_table
from rmqstore_spark.cli.shared.terminal import say
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import is_system_topic

if TYPE_CHECKING:
    from rmqstore_spark.reader.groups import DelayProgress, GroupOffset

_COLUMNS = (
    Column("group", least=12),
    Column("topic", least=12),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("max", right=True),
    Column("lag", right=True),
)
_TOTAL_COLUMNS = (
    Column("group", least=12),
    Column("topic", least=12),
    Column("queues", right=True),
    Column("lag", right=True),
)
_DELAY_COLUMNS = (
    Column("level", right=True),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("max", right=True),
    Column("lag", right=True),
)
_Group = typer.Option(
    "--group", "-g", metavar="GROUP", help="Only this group. Repeat it for several."
)


def groups(
    names: Annotated[list[str] | None, _Group] = None,
    topics: Topics = None,
    totals: Annotated[
        bool,
        typer.Option(
            "--totals", help="Print a line for each topic of a group instead of each queue."
        ),
    ] = False,
    delays: Annotated[
        bool,
        typer.Option("--delays", help="Print the levels of delayed messages instead of groups."),
    ] = False,
    as_json: AsJson = False,
    *,
    where: StoreAt,
) -> None:
    """List consumer groups with their offsets and lag.

    The offsets come from config/consumerOffset.json, which a broker writes every few seconds. The
    JSON output includes the levels of delayed messages.
    """
    from rmqstore_spark.reader.groups import delay_progress, group_offsets

    with where.open() as store:
        found = group_offsets(store)
        _require_known(store.path, "consumer group", names, {entry.group for entry in found})
        read = {entry.topic for entry in found}
        unread = [name for name in topics or () if name not in read]
        if not all(holds_topic(store, name) for name in unread):
            _require_known(
                store.path, "topic", topics, read | store.directory.topology.queues.keys()
            )
        if store.lacks_queues:
            say(f"{store.path} has no queues: ends and lags are unknown and shown as 0.")
        chosen = [
            entry
            for entry in found
            if (names is None or entry.group in names) and (not topics or entry.topic in topics)
        ]
        described = list(_by_group(chosen))
        levels = [_delay(level) for level in delay_progress(store)]
        if as_json:
            document = {
                "path": store.path,
                "brokerName": store.broker_name,
                "groups": described,
                "delays": levels,
            }
            typer.echo(json_text(document, indent=2))
        elif delays:
            print_table(_DELAY_COLUMNS, [[str(n) for n in level.values()] for level in levels])
        elif not chosen and found:
            say(f"{store.path} has no offsets of such a group in such a topic.")
        elif not chosen:
            say(f"{store.path} has no offsets of consumer groups (config/consumerOffset.json).")
        elif totals:
            print_table(_TOTAL_COLUMNS, _total_rows(described))
        else:
            print_table(_COLUMNS, _queue_rows(described))


def _require_known(path: str, what: str, names: Sequence[str] | None, known: set[str]) -> None:
    unknown = [name for name in names or () if name not in known]
    if unknown:
        there = sorted(name for name in known if not is_system_topic(name))
        raise OptionError(
            f"{path} has no {what} {unknown[0]!r}. It has: {', '.join(there) or 'none'}."
        )


def _by_group(entries: Sequence[GroupOffset]) -> Iterator[dict[str, Any]]:
    grouped: dict[str, dict[str, list[GroupOffset]]] = {}
    for entry in entries:
        grouped.setdefault(entry.group, {}).setdefault(entry.topic, []).append(entry)
    for group, topics in sorted(grouped.items()):
        described = [_topic(topic, queues) for topic, queues in sorted(topics.items())]
        yield {
            "group": group,
            "lag": sum(topic["lag"] for topic in described),
            "topics": described,
        }


def _topic(topic: str, queues: Sequence[GroupOffset]) -> dict[str, Any]:
    return {
        "topic": topic,
        "lag": sum(queue.lag for queue in queues),
        "queues": [
            {
                "queueId": queue.queue_id,
                "offset": queue.offset,
                "maxOffset": queue.max_offset,
                "lag": queue.lag,
            }
            for queue in sorted(queues, key=lambda queue: queue.queue_id)
        ],
    }


def _delay(level: DelayProgress) -> dict[str, Any]:
    return {
        "level": level.level,
        "queueId": level.queue_id,
        "offset": level.offset,
        "maxOffset": level.max_offset,
        "lag": level.lag,
    }


def _queue_rows(groups: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    numbers = ("queueId", "offset", "maxOffset", "lag")
    for group in groups:
        for topic in group["topics"]:
            for queue in topic["queues"]:
                yield group["group"], topic["topic"], *(str(queue[name]) for name in numbers)
        yield group["group"], "(all)", "", "", "", str(group["lag"])


def _total_rows(groups: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for group in groups:
        for topic in group["topics"]:
            yield group["group"], topic["topic"], str(len(topic["queues"])), str(topic["lag"])
        count = sum(len(topic["queues"]) for topic in group["topics"])
        yield group["group"], "(all)", str(count), str(group["lag"])
