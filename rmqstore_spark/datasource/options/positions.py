"""The positions at which a read starts or ends.

The JSON forms are those of Spark's Kafka source, `{"topic":{"0":23,"1":-2}}`, and the same with the
broker between topic and queue, `{"topic":{"broker-a":{"0":23}}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rmqstore_spark.datasource.options.values import (
    parse_json_object,
    parse_timestamp_ms,
    timestamp_ms,
)

EARLIEST = -2
"""In a JSON of offsets: the queue's first message."""
LATEST = -1
"""In a JSON of offsets: the end of the queue, after its last message."""

_MAX_QUEUE_ID = 2**31 - 1


@dataclass(frozen=True)
class PerQueue:
    """A number for each of several queues.

    Args:
        values: (topic, broker or None for every broker, queue id) -> number.
    """

    values: Mapping[tuple[str, str | None, int], int]

    def get(self, broker: str, topic: str, queue_id: int) -> int | None:
        """Look up a queue; an entry with a broker overrides one without."""
        found = self.values.get((topic, broker, queue_id))
        return self.values.get((topic, None, queue_id)) if found is None else found


@dataclass(frozen=True)
class Earliest:
    """The first message that each queue still has."""


@dataclass(frozen=True)
class Latest:
    """The end of each queue, after its last message."""


@dataclass(frozen=True)
class AtOffsets:
    """An offset per queue; -2 and -1 are allowed."""

    offsets: PerQueue


@dataclass(frozen=True)
class OfGroup:
    """The progress of a consumer group."""

    group: str


@dataclass(frozen=True)
class AtTime:
    """The first message of each queue that was stored at or after one time (ms)."""

    timestamp: int


@dataclass(frozen=True)
class AtTimes:
    """The first message of each queue that was stored at or after the queue's own time (ms)."""

    timestamps: PerQueue


Position: TypeAlias = Earliest | Latest | AtOffsets | OfGroup | AtTime | AtTimes


def parse_offsets(text: str) -> Position:
    """Parse `earliest`, `latest`, `group:NAME` or a JSON of offsets."""
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if word[:6].lower() == "group:":
        if not word[6:].strip():
            raise ValueError("must name a consumer group, as in group:NAME")
        return OfGroup(word[6:].strip())
    if not word.startswith("{"):
        raise ValueError(
            'must be earliest, latest, group:NAME or a JSON such as {"topic":{"0":23,"1":-2}}'
        )
    return AtOffsets(_per_queue(word, _offset))


def parse_time(text: str) -> AtTime:
    """Parse a point in time."""
    return AtTime(parse_timestamp_ms(text))


def parse_times(text: str) -> AtTimes:
    """Parse a JSON of times, `{"topic":{"0":1700000000000}}`."""
    return AtTimes(_per_queue(text, timestamp_ms))


def parse_assign(text: str) -> Mapping[str, tuple[int, ...]]:
    """Parse `{"topic":[0,1]}`: the queues of each topic."""
    assigned = {}
    for topic, queues in parse_json_object(text).items():
        if not isinstance(queues, list) or not queues:
            raise ValueError('must be a JSON such as {"topic":[0,1]}')
        if not all(type(queue) is int and 0 <= queue <= _MAX_QUEUE_ID for queue in queues):
            raise ValueError(f"must have valid queue ids for topic {topic}")
        assigned[topic] = tuple(sorted(set(queues)))
    if not assigned:
        raise ValueError("must name a topic")
    return assigned


def _offset(value: object) -> int:
    if type(value) is not int or not EARLIEST <= value < 2**63:
        raise ValueError("must contain offsets of 0 or more, -2 (earliest) or -1 (latest)")
    return value


def _per_queue(text: str, read: Callable[[object], int]) -> PerQueue:
    values: dict[tuple[str, str | None, int], int] = {}
    topics = parse_json_object(text)
    if not topics:
        raise ValueError("must name a topic")
    for topic, queues in topics.items():
        if not isinstance(queues, dict) or not queues:
            raise ValueError(f'must list the queues of {topic} as {{"0":23}}')
        for name, value in queues.items():
            if isinstance(value, dict):
                for queue, inner in value.items():
                    values[topic, name, _queue_id(queue)] = read(inner)
            else:
                values[topic, None, _queue_id(name)] = read(value)
    return PerQueue(values)


def _queue_id(text: Any) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _MAX_QUEUE_ID:
        raise ValueError(f"must have valid queue ids (found {text!r})")
    return int(text)
