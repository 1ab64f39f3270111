"""Which brokers a producer avoids for a while, because they failed or were slow.

Upstream: MQFaultStrategy and LatencyFaultToleranceImpl, with `sendLatencyFaultEnable`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

_SLOW: Final = (0.0, 0.55, 1.0, 2.0, 3.0, 15.0)
"""Seconds that a broker took to answer, from which on ..."""
_SECONDS: Final = (0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
"""... it is avoided for so many seconds. One that failed counts as the slowest."""


class AvoidedBrokers:
    """The brokers that are avoided, and until when.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def answered(self, broker: str, seconds: float) -> None:
        """Take note of how long a broker took to answer."""
        self._until[broker] = self._clock() + _SECONDS[bisect_right(_SLOW, seconds) - 1]

    def failed(self, broker: str) -> None:
        """Take note that a broker failed, or refused messages that another one may take."""
        self._until[broker] = self._clock() + _SECONDS[-1]

    def has(self, broker: str) -> bool:
        """Return whether a broker is avoided now."""
        return self._clock() < self._until.get(broker, 0.0)

    def soonest(self, brokers: Iterable[str]) -> str:
        """Return the one of some brokers that is avoided for the shortest time from now on."""
        return min(brokers, key=lambda name: self._until.get(name, 0.0))
