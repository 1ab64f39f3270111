"""Limit the rate of rows per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE_SECONDS: Final = 10
"""The rows of this many seconds are committed together; the rate is an average over them."""

_ROWS_AT_ONCE: Final = 250_000  # 1 GB, the maximum of one commit, for messages of 4 KiB


class Pace:
    """Passes batches on at a rate; it does not catch up after delays.

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
        """Yield the same rows, in pieces of at most a tenth of a second."""
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
        # The next task begins its own pace.
        self._wait(max(0.0, due - self._clock()))


def rows_at_once(rows_per_second: float | None) -> int:
    """Return how many rows are committed together, with or without a rate."""
    if rows_per_second is None:
        return _ROWS_AT_ONCE
    return min(_ROWS_AT_ONCE, int(rows_per_second * RATE_SECONDS))


def paced(rows: DataFrame, rows_per_second: float) -> DataFrame:
    """Limit the rate of rows: one task reads all of them, and passes them on."""
    return rows.coalesce(1).mapInArrow(Pace(rows_per_second), rows.schema)
