"""Counts for metrics: durations in buckets as Prometheus expects them, failed calls by status."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError, RefusedError, StoreWriteError

_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, float("inf"),
)  # fmt: skip


class Histogram:
    """Counts durations by the smallest bound that they do not exceed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        with self._lock:
            self._counts[bisect_left(_BOUNDS, seconds)] += 1
            self._sum += seconds

    def to_json(self) -> dict[str, Any]:
        """Return `buckets`: (bound in seconds, count up to it); `sum` in seconds; `count`."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        buckets = [
            [str(b) if b == float("inf") else b, c] for b, c in zip(_BOUNDS, counts, strict=True)
        ]
        return {"buckets": buckets, "sum": total, "count": counts[-1]}


class Failures:
    """Counts failed calls of one kind. Thread-safe.

    All statuses exist from the start: the rate of a counter that appears with its first failure
    does not show that failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {str(status): 0 for status in PutStatus if status is not PutStatus.PUT_OK}

    def count(self, status: str) -> None:
        """Count a call by its status, unless that is PUT_OK."""
        if status != PutStatus.PUT_OK:
            with self._lock:
                self._counts[str(status)] = self._counts.get(str(status), 0) + 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count an exception of its body by the status that a client gets for it."""
        try:
            yield
        except (BlockError, RefusedError) as error:
            self.count(error.status)
            raise
        except StoreWriteError:
            self.count(PutStatus.SERVICE_NOT_AVAILABLE)
            raise

    def to_json(self) -> dict[str, int]:
        """Return the number of failures by status."""
        with self._lock:
            return dict(self._counts)
