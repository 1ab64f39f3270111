"""Collects the findings of a unit, with the ranges of what was right and of what holds no record.

Findings of several units can be merged in any grouping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.spans import I8
from rmqstore_spark.verify.report import KINDS, Problem, Severity, TornTail

_MOST_RANGES: Final = 4096
LISTED: Final = 100
"""How many problems of each kind are listed by default; the others are counted."""
Place = tuple[str, int | None]
"""A file and an offset in it; None for the whole file."""
_MOST_FLAWS: Final = 100_000
_NEVER: Final = 1 << 62


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


def place_of(error: Exception) -> Place:
    """Return the file and offset that an error names."""
    return getattr(error, "file", ""), getattr(error, "offset", None)


class Findings:
    """Problems and counts, in the order of the store. They stay small in a badly damaged store.

    Args:
        listed: how many problems of each kind and severity are kept.

    Attributes:
        counts: how much of each kind of data was checked.
        newest: the greatest storeTimestamp seen, ms.
        oldest: the least storeTimestamp seen, ms.
        queues: queue entries that records in the log match, by number of the queue.
        index: index entries that records in the log match, by number of the index file.
        flaws: stretches (from, to) of the log that hold no record.
        displaced: queue, slot and physical offset of records whose entry points to a later offset.
        torn: stretches (from, to) of the log whose records may belong to a batch without its rest.
        void: physical offsets of the first and the last of records in a row with void entries.
        torn_tail: the bytes after the log's end.
    """

    def __init__(self, listed: int = LISTED) -> None:
        self._listed = listed
        self._problems: dict[tuple[str, Severity], list[Problem]] = {}
        self._totals: Counter[tuple[str, Severity]] = Counter()
        self.counts: Counter[str] = Counter()
        self.newest = 0
        self.oldest = _NEVER
        self.queues = Coverage()
        self.index = Coverage()
        self.flaws: list[tuple[int, int]] = []
        self.displaced: list[tuple[int, int, int]] = []
        self.torn: list[tuple[int, int]] = []
        self.void: list[tuple[int, int]] = []
        self.torn_tail: TornTail | None = None

    def error(self, kind: str, place: Place, text: str) -> None:
        """Report damage."""
        self.say("error", kind, place, text)

    def note(self, kind: str, place: Place, text: str) -> None:
        """Report something unusual that is not damage."""
        self.say("note", kind, place, text)

    def say(self, severity: Severity, kind: str, place: Place, text: str) -> None:
        """Report a problem.

        Args:
            kind: one of KINDS.
        """
        if kind not in KINDS:
            raise KeyError(kind)
        problem = Problem(kind, severity, place[0], place[1], text)
        self._totals[kind, severity] += 1
        known = self._problems.setdefault((kind, severity), [])
        if len(known) < self._listed:
            known.append(problem)

    def each(
        self,
        severity: Severity,
        kind: str,
        bad: npt.NDArray[np.bool_],
        place: Callable[[int], Place],
        text: str | Callable[[int], str],
    ) -> None:
        """Report a problem for each row of a batch that is marked as bad."""
        if not bad.any():
            return
        rows = np.flatnonzero(bad)
        room = max(0, self._listed - len(self._problems.get((kind, severity), ())))
        for row in rows[:room].tolist():
            said = text if isinstance(text, str) else text(row)
            self.say(severity, kind, place(row), said)
        if len(rows) > room:
            self._totals[kind, severity] += len(rows) - room

    def flaw(self, start: int, end: int) -> None:
        """Remember that a stretch of the log holds no record."""
        if len(self.flaws) < _MOST_FLAWS:
            self.flaws.append((start, end))

    def displace(self, queue: int, slot: int, offset: int) -> None:
        """Remember that the entry of a record points to a later offset."""
        if len(self.displaced) < _MOST_FLAWS:
            self.displaced.append((queue, slot, offset))

    def tear(self, start: int, end: int) -> None:
        """Remember that the records of a stretch may belong to a batch without its rest."""
        if len(self.torn) < _MOST_FLAWS:
            self.torn.append((start, end))

    def add_void(self, first: int, last: int, *, continued: bool) -> None:
        """Remember records in a row with void entries.

        Args:
            first, last: physical offsets of the first and the last of them.
            continued: whether the first one follows the last one of those before.
        """
        if continued and self.void:
            self.void[-1] = (self.void[-1][0], last)
        elif len(self.void) < _MOST_FLAWS:
            self.void.append((first, last))

    def merge(self, other: Findings) -> None:
        """Add the findings of another unit, preferably in the order of the store."""
        for key, problems in other._problems.items():
            known = self._problems.setdefault(key, [])
            known.extend(problems[: max(0, self._listed - len(known))])
        self._totals.update(other._totals)
        self.counts.update(other.counts)
        self.newest = max(self.newest, other.newest)
        self.oldest = min(self.oldest, other.oldest)
        self.queues.merge(other.queues)
        self.index.merge(other.index)
        self.flaws.extend(other.flaws[: max(0, _MOST_FLAWS - len(self.flaws))])
        self.displaced.extend(other.displaced[: max(0, _MOST_FLAWS - len(self.displaced))])
        self.torn.extend(other.torn[: max(0, _MOST_FLAWS - len(self.torn))])
        self.void.extend(other.void[: max(0, _MOST_FLAWS - len(self.void))])
        self.torn_tail = self.torn_tail or other.torn_tail

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The listed problems: errors first, then notes. Kinds are in the order of discovery."""
        ordered = sorted(self._problems.items(), key=lambda item: item[0][1] != "error")
        return tuple(problem for _, problems in ordered for problem in problems)

    @property
    def totals(self) -> dict[str, int]:
        """The number of problems of each kind."""
        totals: Counter[str] = Counter()
        for (kind, _), count in self._totals.items():
            totals[kind] += count
        return dict(totals)

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(count for (_, severity), count in self._totals.items() if severity == "error")
