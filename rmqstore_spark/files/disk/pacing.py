"""Counts the bytes of reads, and limits their rate."""

from __future__ import annotations

import threading
import time
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.disk.reads import DiskReads

LEAST_RATE: Final = 1 << 20
"""The lowest rate, in bytes per second. With a lower one, requests of clients would time out."""


class PacedReads:
    """Other reads, counted and at a limited rate. Threads can share it, and it serves them in turn.

    The limit is on what is read, whether it comes from the disk or from the page cache. A read
    starts when all reads before it are paid for. In any stretch of time, at most its length times
    the rate is read, and one read more.

    Args:
        reads: the reads themselves.
        rate: bytes per second, at least `LEAST_RATE`; None for no limit.
    """

    def __init__(self, reads: DiskReads, rate: int | None = None) -> None:
        if rate is not None and rate < LEAST_RATE:
            raise ValueError(f"a rate of {rate} bytes per second is too low")
        self._reads = reads
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes that were requested so far."""
        return self._total

    def some(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return bytes at an offset."""
        self._wait(length)
        return self._reads.some(descriptor, length, offset)

    def some_into(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill a buffer from an offset."""
        self._wait(len(out))
        return self._reads.some_into(descriptor, out, offset)

    def spans(
        self,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> int:
        """Read spans into `out`, one after the other."""
        self._wait(int(lengths.sum(dtype=np.int64)))
        return self._reads.spans(descriptor, offsets, lengths, out)

    def _wait(self, count: int) -> None:
        with self._lock:
            self._total += count
            if self._rate is None:
                return
            start = max(time.monotonic(), self._free_at)
            self._free_at = start + count / self._rate
        pause = start - time.monotonic()
        if pause > 0:
            time.sleep(pause)
