"""Parse the text of one option: booleans, sizes, times, lists.

Every function takes the text as the user wrote it, and raises `ValueError` with a phrase that
follows the option's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rmqstore_spark.base.settings import parse_boolean, parse_choice
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.reader.filters import parse_names
from rmqstore_spark.reader.sizes import parse_bytes
from rmqstore_spark.reader.times import check_milliseconds, parse_timestamp_ms
from rmqstore_spark.remoting.addresses import parse_address

__all__ = [
    "parse_addresses",
    "parse_boolean",
    "parse_bytes",
    "parse_choice",
    "parse_duration_ms",
    "parse_integer",
    "parse_is",
    "parse_json_object",
    "parse_names",
    "parse_paths",
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
