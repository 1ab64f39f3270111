"""Holds ranges of numbers: the entries that are right, the stretches of the log without records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.spans import I8

_MOST_RANGES: Final = 4096


class Coverage:
    """Ranges of numbers per queue or index file, called the owner.

    Numbers that are not covered are checked again, so ranges may be dropped. If an owner has too
    many ranges, its first ones are kept and new ones are dropped.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, owner: int, start: int, end: int) -> None:
        """Cover `start` to `end - 1` of one owner."""
        ranges = self._ranges.setdefault(owner, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        elif len(ranges) < _MOST_RANGES:
            ranges.append((start, end))

    def add_numbers(self, owners: npt.NDArray[np.integer], numbers: I8) -> None:
        """Cover single numbers, which must be grouped by owner."""
        if not len(numbers):
            return
        breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(owners) != 0)) + 1
        firsts = np.concatenate([[0], breaks])
        lasts = np.concatenate([breaks, [len(numbers)]]) - 1
        for owner, start, end in zip(
            owners[firsts].tolist(), numbers[firsts].tolist(), numbers[lasts].tolist(), strict=True
        ):
            self.add(owner, start, end + 1)

    def merge(self, other: Coverage) -> None:
        """Add the ranges of another coverage."""
        for owner, ranges in other._ranges.items():
            for start, end in ranges:
                self.add(owner, start, end)

    def missing(self, owner: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `start` to `end - 1` that are not covered, ascending."""
        for covered, until in sorted(self._ranges.get(owner, [])):
            if covered > start:
                yield start, min(covered, end)
            start = max(start, until)
            if start >= end:
                return
        if start < end:
            yield start, end


class Flaws:
    """Stretches of the log that do not overlap.

    Args:
        stretches: (from, to), in any order.
    """

    def __init__(self, stretches: Sequence[tuple[int, int]]) -> None:
        table = np.array(sorted(stretches) or [(0, 0)], np.int64)
        self._starts, self._ends = table[:, 0], table[:, 1]

    def hold(self, offsets: I8) -> npt.NDArray[np.bool_]:
        """Return which physical offsets lie in one of the stretches."""
        at = np.searchsorted(self._starts, offsets, side="right") - 1
        inside: npt.NDArray[np.bool_] = (at >= 0) & (offsets < self._ends[np.maximum(at, 0)])
        return inside
