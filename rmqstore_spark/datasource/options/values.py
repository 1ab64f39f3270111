"""Parse the text of one option: booleans, sizes, times, lists, and positions in queues.

Every function takes the text as the user wrote it, and raises `ValueError` with a phrase that
follows the option's name. The JSON forms of positions are those of Spark's Kafka source,
`{"topic":{"0":23,"1":-2}}`, and the same with the broker between topic and queue,
`{"topic":{"broker-a":{"0":23}}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rmqstore_spark.base.settings import parse_boolean, parse_choice
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.reader.texts import (
    check_milliseconds,
    parse_bytes,
    parse_names,
    parse_timestamp_ms,
)
from rmqstore_spark.remoting.addresses import parse_address

__all__ = [
    "EARLIEST",
    "LATEST",
    "AtOffsets",
    "AtTime",
    "AtTimes",
    "Earliest",
    "Latest",
    "OfGroup",
    "PerQueue",
    "Position",
    "parse_addresses",
    "parse_assign",
    "parse_boolean",
    "parse_bytes",
    "parse_choice",
    "parse_duration_ms",
    "parse_integer",
    "parse_is",
    "parse_json_object",
    "parse_names",
    "parse_offsets",
    "parse_paths",
    "parse_time",
    "parse_times",
    "parse_timestamp_ms",
    "timestamp_ms",
]

_DURATION_UNITS = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_LONG_MAX = 2**63 - 1
_ASCII_DIGITS = re.compile(r"-?[0-9]{1,20}")


def parse_is(wanted: str, *words: str) -> Callable[[str], bool]:
    """Create a parser that accepts one of several words, and tells whether it is a certain one."""
    parse = parse_choice(*words)
    return lambda text: parse(text) == wanted


def parse_integer(text: str) -> int:
    """Parse a decimal number that fits into a Java long."""
    word = text.strip()
    if not _ASCII_DIGITS.fullmatch(word) or abs(int(word)) > _LONG_MAX:
        raise ValueError("must be a whole number")
    return int(word)


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as `500ms`, `30s`, `15m`, `1h`; a plain number is milliseconds."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in _DURATION_UNITS:
        raise ValueError("must be a duration such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _DURATION_UNITS[match[2]]


def timestamp_ms(value: object) -> int:
    """Parse a point in time in JSON: a number of milliseconds, or a text."""
    if isinstance(value, str):
        return parse_timestamp_ms(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LONG_MAX:
        check_milliseconds(value)
        return value
    raise ValueError("must contain times as milliseconds since 1970 or as ISO-8601 texts")


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; a duplicate key is refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("must be a JSON object without duplicate keys")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse `host:port` or several, separated by `;` or a comma."""
    found = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    for address in found:
        try:
            parse_address(address)
        except ServiceError:
            raise ValueError("must be HOST:PORT, or several with ; between") from None
    if not found:
        raise ValueError("must be HOST:PORT, or several with ; between")
    return tuple(dict.fromkeys(found))


def parse_paths(text: str) -> tuple[str, ...]:
    """Parse a list of paths or URLs: comma-separated, or a JSON list.

    Spark's catalog changes `file:///x` to `file:/x`, even inside a chained URL; this is undone.
    """
    return tuple(
        re.sub(r"(^|::)([A-Za-z][A-Za-z0-9+.-]+):/(?!/)", r"\1\2:///", path)
        for path in parse_names(text)
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
