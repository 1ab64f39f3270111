"""Addresses from which clients are accepted (upstream: RemoteAddressStrategyFactory).

A pattern is an address each part of which may be a number, a range `1-20` or `*`; the last part may
be a list `{1,2}`. Several patterns have commas between. After `*`, missing parts are `*` too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

_LIST: Final = re.compile(r"(.*[.:])\{([^{}]*)\}")
_COMMA: Final = re.compile(r",(?![^{]*\})")
_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_MOST: Final = 10_000
_MOST_HOSTS: Final = 4096
"""Addresses of clients that are kept parsed: they come with each request."""

_Range: TypeAlias = tuple[int, int]


class _Form(NamedTuple):
    """How addresses of a version of IP are written."""

    separator: str
    parts: int
    base: int
    largest: int
    digits: re.Pattern[str]


_V4: Final = _Form(".", 4, 10, 255, re.compile(r"[0-9]{1,3}"))
_V6: Final = _Form(":", 8, 16, 0xFFFF, re.compile(r"[0-9a-fA-F]{1,4}"))


class WhiteAddresses:
    """Patterns of addresses.

    Args:
        patterns: as a file has them.

    Attributes:
        has_everybody: whether one of them matches any address.

    Raises:
        ValueError: one is not a pattern; the text says which.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [
            part.strip() for pattern in patterns for part in _COMMA.split(pattern) if part.strip()
        ]
        self.has_everybody = any(pattern in _EVERYBODY for pattern in given)
        self._ranges = [
            ranges for pattern in given if pattern not in _EVERYBODY for ranges in _expand(pattern)
        ]
        if len(self._ranges) > _MOST:
            raise ValueError(f"there are more than {_MOST} addresses")

    def holds(self, host: str) -> bool:
        """Return whether an IP address matches a pattern."""
        if self.has_everybody or not self._ranges:
            return self.has_everybody
        parts = _parts_of(host)
        return any(
            len(ranges) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))
            for ranges in self._ranges
        )


@lru_cache(_MOST_HOSTS)
def _parts_of(host: str) -> tuple[int, ...]:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            data = address.packed
            return tuple(int.from_bytes(data[at : at + 2], "big") for at in range(0, 16, 2))
        address = address.ipv4_mapped
    return tuple(address.packed)


def _expand(pattern: str) -> Iterator[tuple[_Range, ...]]:
    """Yield the ranges of a pattern, part by part."""
    listed = _LIST.fullmatch(pattern)
    endings = listed[2].split(",") if listed else [""]
    start = listed[1] if listed else pattern
    form = _V6 if ":" in pattern else _V4
    for ending in endings:
        parts = _parts(start + ending.strip(), form)
        found = tuple(_range(part, form) for part in parts)
        if len(found) != form.parts or None in found:
            raise ValueError(f"{pattern!r} is not a pattern of addresses such as 10.1.2.* or ::1")
        yield tuple(each for each in found if each is not None)


def _parts(text: str, form: _Form) -> list[str]:
    if form is _V6 and text.count("::") == 1:
        before, _, after = text.partition("::")
        head = before.split(":") if before else []
        tail = after.split(":") if after else []
        return [*head, *["0"] * (form.parts - len(head) - len(tail)), *tail]
    parts = text.split(form.separator)
    if parts[-1] == "*" and len(parts) < form.parts:
        parts += ["*"] * (form.parts - len(parts))
    return parts


def _range(part: str, form: _Form) -> _Range | None:
    """Return the least and the largest number that a part matches; None if it is wrong."""
    if part.strip() == "*":
        return 0, form.largest
    ends = [end.strip() for end in part.split("-")]
    if len(ends) > 2 or not all(map(form.digits.fullmatch, ends)):
        return None
    low, high = int(ends[0], form.base), int(ends[-1], form.base)
    return (low, high) if low <= high <= form.largest else None
