"""Parses times that users write."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

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
