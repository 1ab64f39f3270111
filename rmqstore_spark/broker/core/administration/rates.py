"""How many messages came and went a second, over some times (upstream: StoreStatsService)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_TIMES: Final = (10.0, 60.0, 600.0)
_MOST: Final = 64


class _Sample(NamedTuple):
    at: float
    put: int
    given: int


class Rates:
    """Rates from counts that are told about every ten seconds.

    Args:
        now: seconds of a clock that only goes forward.
        put, given: the counts now.
    """

    def __init__(self, now: float, put: int, given: int) -> None:
        self._samples = deque([_Sample(now, put, given)], _MOST)

    def sample(self, now: float, put: int, given: int) -> None:
        """Take note of the counts."""
        self._samples.append(_Sample(now, put, given))

    def texts(self, now: float, put: int, given: int) -> tuple[str, str]:
        """Return both rates as a broker tells them: over 10, 60 and 600 seconds.

        Args:
            now: the time.
            put, given: the counts now.
        """
        last = _Sample(now, put, given)
        rates = [self._rate(last, seconds) for seconds in _TIMES]
        puts, gives = zip(*rates, strict=True)
        return " ".join(map(str, puts)), " ".join(map(str, gives))

    def _rate(self, last: _Sample, seconds: float) -> tuple[float, float]:
        before = [sample for sample in self._samples if last.at - sample.at >= seconds]
        first = before[-1] if before else self._samples[0]
        took = last.at - first.at
        if took <= 0:
            return 0.0, 0.0
        return (last.put - first.put) / took, (last.given - first.given) / took
