"""Counts durations in buckets, as Prometheus expects them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import Any, Final

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
