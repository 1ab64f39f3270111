"""What the figures of a store were in the last minutes, for rates and plots.

A sample has the end of each queue, and some totals. The ends are in a table with a column for each
queue, 8 bytes each: 20,000 queues take 10 MB, and further ones have no rates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rmqstore_spark.layout.spans import I8

SAMPLES: Final = 61
RECENT_SECONDS: Final = 61.0
"""The time over which a rate of now is taken, if there are samples enough."""

_MOST_QUEUES: Final = 20_000
_UNKNOWN: Final = -1
_TOTALS: Final = ("commitLogMaxOffset", "commits", "readBytes")

Queues = Mapping[str, Mapping[str, Sequence[int]]]
"""The offsets of queues, their first and their next one, by topic and queueId."""


class History:
    """Samples of one store's figures, the last `SAMPLES` of them. Not thread-safe.

    Args:
        recent_seconds: the time over which a rate of now is taken.
    """

    def __init__(self, recent_seconds: float = RECENT_SECONDS) -> None:
        self._recent_seconds = recent_seconds
        self._columns: dict[tuple[str, str], int] = {}
        self._ends: deque[I8] = deque(maxlen=SAMPLES)
        self._totals: deque[dict[str, float]] = deque(maxlen=SAMPLES)
        self._times: deque[float] = deque(maxlen=SAMPLES)

    def add(self, now: float, stats: Mapping[str, Any]) -> None:
        """Take note of figures.

        Args:
            now: seconds of a clock that only goes forward.
            stats: as `ServedStore.stats` returns them.
        """
        queues: Queues = stats.get("queues", {})
        if len(self._columns) >= _MOST_QUEUES > sum(map(len, queues.values())):
            self._columns.clear()  # queues that are gone have their columns
            self._ends.clear()
            self._totals.clear()
            self._times.clear()
        columns = self._columns
        ends: dict[int, int] = {}
        for topic, by_id in queues.items():
            for queue_id, (_, end) in by_id.items():
                place = topic, queue_id
                column = columns.get(place)
                if column is None:
                    if len(columns) >= _MOST_QUEUES:
                        continue
                    column = columns[place] = len(columns)
                ends[column] = end
        row = np.full(len(columns), _UNKNOWN, np.int64)
        row[list(ends.keys())] = list(ends.values())
        self._ends.append(row)
        self._totals.append({name: float(stats.get(name, 0)) for name in _TOTALS})
        self._times.append(now)

    def rates(self) -> dict[tuple[str, str], float]:
        """Return how many messages a second each queue got lately, or since it is known.

        Queues that were not there for two samples are left out.
        """
        if len(self._times) < 2:
            return {}
        now, end = self._times[-1], self._ends[-1]
        recent = now - self._recent_seconds
        begin, since = np.full(len(end), _UNKNOWN, np.int64), np.full(len(end), now)
        for number in range(len(self._times) - 1):
            if self._times[number] < recent and number < len(self._times) - 2:
                continue
            row = self._ends[number]
            is_new = np.flatnonzero((begin[: len(row)] < 0) & (row >= 0))
            begin[is_new], since[is_new] = row[is_new], self._times[number]
        seconds = now - since
        found = np.full(len(end), -1.0)
        known = (seconds > 0) & (end >= 0)
        found[known] = np.maximum(end - begin, 0)[known] / seconds[known]
        rates = found.tolist()
        return {place: rates[at] for place, at in self._columns.items() if rates[at] >= 0}

    @property
    def seconds(self) -> float:
        """The time between the first and the last sample."""
        return self._times[-1] - self._times[0] if self._times else 0.0

    def messages(self, topic: str | None = None) -> list[float]:
        """Return how many messages a second came, between each two samples.

        Args:
            topic: one of the topics; None for all.
        """
        of_topic: I8 | None = None
        if topic is not None:
            numbers = [at for (name, _), at in self._columns.items() if name == topic]
            of_topic = np.array(numbers, np.int64)
        found = []
        for number in range(1, len(self._times)):
            grown = _grown(self._ends[number - 1], self._ends[number])
            if of_topic is not None:
                grown = grown[of_topic[of_topic < len(grown)]]
            found.append(float(grown.sum()) / self._seconds(number))
        return found

    def total(self, name: str) -> list[float]:
        """Return by how much a total grew a second, between each two samples."""
        values = [sample[name] for sample in self._totals]
        return [
            max(0.0, values[number] - values[number - 1]) / self._seconds(number)
            for number in range(1, len(values))
        ]

    def _seconds(self, number: int) -> float:
        return max(1e-3, self._times[number] - self._times[number - 1])


def _grown(before: I8, after: I8) -> I8:
    """Return by how much queues grew that both samples have; a queue that was cut grew by none."""
    after = after[: len(before)]
    grown = np.where((before >= 0) & (after >= 0), after - before, 0)
    return np.maximum(grown, 0)
