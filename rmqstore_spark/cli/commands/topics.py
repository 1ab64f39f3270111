"""`rmqstore topics`: lists the topics of a store and their queues."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqstore_spark.cli.shared.parameters import AllTopics, AsJson, StoreAt
from rmqstore_spark.cli.shared.tables import QUEUE_COLUMNS, Column, json_text, print_table
from rmqstore_spark.cli.shared.terminal import say

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store, Topic


def topics(
    queues: Annotated[bool, typer.Option("--queues", help="Print a line for each queue.")] = False,
    everything: AllTopics = False,
    as_json: AsJson = False,
    *,
    where: StoreAt,
) -> None:
    """List the topics, their queues and offsets."""
    with where.open() as store:
        known = store.topics()
        if store.lacks_queues:
            every = _from_log(store, known)
        else:
            every = _from_queues(store, known, everything)
        described = [topic for topic in every if everything or not topic["system"]]
        hidden = 0 if everything else sum(topic.is_system for topic in known)
        if as_json:
            document = {
                "path": store.path,
                "brokerName": store.broker_name,
                "hasQueues": store.has_queues,
                "topics": described,
            }
            typer.echo(json_text(document, indent=2))
        elif not described:
            more = f" but {hidden} system topic(s): --all shows them" if hidden else ""
            say(f"{store.path} has no topics{more}.")
        elif queues:
            print_table(QUEUE_COLUMNS, _queue_rows(described))
        else:
            print_table(_TOPIC_COLUMNS, map(_topic_row, described))


_TOPIC_COLUMNS = (
    Column("topic", least=12),
    Column("queues", least=6),
    Column("messages", right=True),
    Column("perm"),
    Column("order"),
    Column("system"),
)


def _from_queues(store: Store, topics: Sequence[Topic], everything: bool) -> list[dict[str, Any]]:
    shown = [topic for topic in topics if everything or not topic.is_system]
    queues: dict[str, list[dict[str, Any]]] = {}
    for q in store.queues([topic.name for topic in shown]):
        found = _queue(q.queue_id, q.min_offset, q.max_offset, q.max_offset - q.min_offset)
        queues.setdefault(q.topic, []).append(found)
    return [_describe(topic, queues.get(topic.name, [])) for topic in shown]


def _from_log(store: Store, topics: Sequence[Topic]) -> list[dict[str, Any]]:
    """Describe topics from the records of the log, for a store without queues."""
    from rmqstore_spark.layout.constants import is_system_topic
    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.topics import LOG_QUEUE_COLUMNS, Topic, queues_in_log

    say(f"{store.path} has no queues: reading its CommitLog instead.")
    queues: dict[str, list[dict[str, Any]]] = {}
    options = ReadOptions(LOG_QUEUE_COLUMNS, check_crc=False, mode="DROPMALFORMED")
    for (name, queue_id), found in queues_in_log(store.scan(options)).items():
        queues.setdefault(name, []).append(_queue(queue_id, *found))
    known = {topic.name: topic for topic in topics}
    return [
        _describe(
            known.get(name, Topic(name, (), None, None, None, None, is_system_topic(name))),
            queues.get(name, []),
        )
        for name in sorted({*known, *queues})
    ]


def _queue(queue_id: int, first: int, end: int, messages: int) -> dict[str, Any]:
    return {"queueId": queue_id, "minOffset": first, "maxOffset": end, "messages": messages}


def _describe(topic: Topic, queues: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "messages": sum(queue["messages"] for queue in queues),
        "perm": topic.perm,
        "order": topic.order,
        "readQueueNums": topic.read_queue_nums,
        "writeQueueNums": topic.write_queue_nums,
        "system": topic.is_system,
        "queues": queues,
    }


def _topic_row(topic: dict[str, Any]) -> Sequence[str]:
    return (
        topic["topic"],
        _spans([queue["queueId"] for queue in topic["queues"]]),
        str(topic["messages"]),
        _permission(topic["perm"]),
        _yes_no(topic["order"]),
        _yes_no(topic["system"]),
    )


def _queue_rows(topics: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    numbers = ("queueId", "minOffset", "maxOffset", "messages")
    for topic in topics:
        for queue in topic["queues"]:
            yield topic["topic"], *(str(queue[name]) for name in numbers)


def _spans(numbers: Sequence[int]) -> str:
    """Format ascending numbers as `0-3,7`."""
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) + (f"-{members[-1]}" if len(members) > 1 else ""))
    return ",".join(parts)


def _permission(perm: object) -> str:
    """Format a permission as RocketMQ does (`PermName`): readable, writable, inherited."""
    if not isinstance(perm, int):
        return "-"
    return "".join(letter if perm & bit else "-" for bit, letter in ((4, "R"), (2, "W"), (1, "X")))


def _yes_no(value: object) -> str:
    return "-" if value is None else "yes" if value is True else "no"
