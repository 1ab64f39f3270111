"""The void entries that a read passes over. They have offsets in their queues, but give no rows.

Who compares the rows of a range with its offsets needs to know how many there were.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import numpy as np

from rmqstore_spark.layout.spans import I8

_Name: TypeAlias = tuple[str, int]


class VoidEntries:
    """The void entries of some reads. Each counts once, also if a read is repeated elsewhere."""

    def __init__(self) -> None:
        self._offsets: dict[_Name, list[I8]] = {}
        self._pieces: dict[_Name, dict[int, int]] = {}

    def note(self, topic: str, queue_id: int, offsets: I8) -> None:
        """Take note of the void entries at some offsets of a queue."""
        if len(offsets):
            self._offsets.setdefault((topic, queue_id), []).append(offsets)

    def note_count(self, topic: str, queue_id: int, start: int, count: int) -> None:
        """Take note of how many a broker tells of, in an answer that begins at an offset."""
        if count:
            self._pieces.setdefault((topic, queue_id), {})[start] = count

    def counts(self) -> Counter[_Name]:
        """Return how many there were, by topic and queueId."""
        found = Counter[_Name]()
        for name, parts in self._offsets.items():
            found[name] += len(np.unique(np.concatenate(parts)))
        for name, pieces in self._pieces.items():
            found[name] += sum(pieces.values())
        return found
