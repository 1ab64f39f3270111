"""A limit on how many rows go by in a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RATE_SECONDS", "Pace", "paced", "rows_at_once"]

RATE_SECONDS: Final = 10
"""What may be written in this time is committed at once: a rate is kept on average of it."""

_ROWS_AT_ONCE: Final = 250_000  # 1 GB, the most of one commit, where messages have 4 KiB


class Pace:
    """Lets batches through at a rate; what was late is not made up for.

    Args:
        rows_per_second: 1 or more.
        clock, wait: seconds.
    """

    def __init__(
        self,
        rows_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._wait = wait

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the same rows, in pieces of at most a tenth of a second."""
        piece = max(1, int(self._rate / 10))
        due = self._clock()
        for batch in batches:
            for start in range(0, len(batch), piece):
                rows = batch.slice(start, piece)
                now = self._clock()
                if due > now:
                    self._wait(due - now)
                due = max(due, now) + len(rows) / self._rate
                yield rows
        # The next task begins a pace of its own.
        self._wait(max(0.0, due - self._clock()))


def rows_at_once(rows_per_second: float | None) -> int:
    """How many rows are committed together, with a rate or without."""
    if rows_per_second is None:
        return _ROWS_AT_ONCE
    return min(_ROWS_AT_ONCE, int(rows_per_second * RATE_SECONDS))


def paced(rows: DataFrame, rows_per_second: float) -> DataFrame:
    """The rows at a rate: one task reads all of them, and lets them through."""
    return rows.coalesce(1).mapInArrow(Pace(rows_per_second), rows.schema)
