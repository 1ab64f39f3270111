"""Binary search with a predicate that costs a read."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["first_true"]


def first_true(low: int, high: int, predicate: Callable[[int], bool]) -> int:
    """Return the least number in `low..high-1` for which the predicate holds; else `high`.

    The predicate must be false up to some number and true from there on.
    """
    while low < high:
        middle = (low + high) // 2
        if predicate(middle):
            high = middle
        else:
            low = middle + 1
    return low
