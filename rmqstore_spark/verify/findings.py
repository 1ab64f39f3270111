"""Collects the findings of a unit. Findings of several units can be merged in any grouping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.verify.ranges import Coverage
from rmqstore_spark.verify.report import KINDS, Problem, Severity, TornTail

LISTED: Final = 100
"""How many problems of each kind are listed by default; the others are counted."""

Place = tuple[str, int | None]
"""A file and an offset in it; None for the whole file."""

_MOST_FLAWS: Final = 100_000
_NEVER: Final = 1 << 62


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
