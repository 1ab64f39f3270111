"""Parses texts that the source's options and the command take: tags, keys, names, sizes, times.

RocketMQ's tag expression (FilterAPI.buildSubscriptionData) is `*`, or tags with `||` between them.
It has no other operator. RocketMQ takes anything else as part of a tag: `TagA && TagB` is a single
tag, which no message has. These functions refuse whatever looks like another operator. A JSON list
names tags and keys literally.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Final

_NO_TAG: Final = re.compile(r"""[\s,;&|!<>=()*'"]""")
_NO_KEY: Final = re.compile(r"[,;]|^(\|\||&&|AND|OR|and|or|\*)$")


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse a tag expression, or a JSON list of tags.

    Returns:
        The tags; None for all.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        return frozenset(parse_names(text))
    tags = [tag.strip() for tag in text.split("||")]
    if tags in ([""], ["*"]):
        return None
    if not all(tags) or any(map(_NO_TAG.search, tags)):
        raise ValueError(
            'must be "*", or tags separated by ||, the only operator that RocketMQ has for tags; '
            'put a tag with other special characters in a JSON list, such as ["a&&b"]'
        )
    return frozenset(tags)


def parse_keys(text: str) -> frozenset[str]:
    """Parse keys that are separated by spaces, or a JSON list of keys.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        return frozenset(parse_names(text))
    keys = frozenset(text.split())
    if not keys:
        raise ValueError("must name at least one key")
    if any(map(_NO_KEY.search, keys)):
        raise ValueError(
            "must be keys separated by spaces, without operators; put a key with special "
            'characters in a JSON list, such as ["a,b"]'
        )
    return keys


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a list of names: comma-separated, or a JSON list of strings.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            value = None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("must be a JSON list of strings")
        names = value
    else:
        names = [item.strip() for item in text.split(",")]
    if not names or not all(names):
        raise ValueError("must not be empty or contain empty names")
    return tuple(names)


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """Parse a size such as `64k`, `256m`, `1gb` or a plain number of bytes.

    Raises:
        ValueError: the text is not a size; the message follows the name of an option.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise ValueError("must be a size such as 64k, 256m or 1g")
    return int(match[1]) * _UNITS[match[2]]


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECONDS = range(10**9, 10**11)
"""As milliseconds these are 1970 to 1973, before any message; as seconds, 2001 and later."""
_MICROSECONDS = range(10**14, 2**63)
"""As milliseconds these are 5138 and later; as microseconds, 1973 and later; or nanoseconds."""


def check_milliseconds(number: int) -> None:
    """Refuse a number that looks like a time in another unit.

    Raises:
        ValueError: the number looks like seconds, microseconds or nanoseconds. The text continues a
            sentence that begins with the name of the option.
    """
    if number in _SECONDS:
        raise ValueError(f"must be in milliseconds, and looks like seconds: use {number}000")
    if number in _MICROSECONDS:
        raise ValueError("must be in milliseconds, and looks like microseconds or nanoseconds")


def parse_timestamp_ms(text: str) -> int:
    """Parse a time: milliseconds since the epoch, or ISO-8601.

    Args:
        text: `1700000000000`, `2023-11-14T22:13:20.5Z`, `2023-11-14 22:13:20+01:00` or
            `2023-11-14`. A time without a zone is UTC.

    Raises:
        ValueError: the text is neither. The text of the error continues a sentence that begins with
            the name of the option.
    """
    word = text.strip()
    if re.fullmatch(r"[0-9]{1,19}", word):
        check_milliseconds(int(word))
        return int(word)
    # Before Python 3.11, fromisoformat accepts neither "Z" nor fractions that do not have exactly
    # 3 or 6 digits.
    iso = re.sub(r"[zZ]$", "+00:00", word)
    iso = re.sub(r"\.([0-9]{1,6})[0-9]*", lambda match: "." + match[1].ljust(6, "0"), iso)
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        raise ValueError(
            "must be milliseconds since 1970 or an ISO-8601 time such as 2024-05-01T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
