"""Counts what producers send and consumers get, over the last minute, hour and day.

The counts begin with the process. Batches of Spark, and what clients of the endpoint put, are
not in them: they are of what the broker's own clients do.

Upstream: BrokerStatsManager, StatsItemSet, StatsItem.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, TypeAlias

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
"""Messages that producers sent, by topic."""
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
"""Messages that consumers got, by `topic@group`."""
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
"""Bytes that consumers got, by `topic@group`."""

_MOST: Final = 30_000
"""Most counts; what would need further ones is not counted."""

_Key: TypeAlias = tuple[str, str]
_Counts: TypeAlias = dict[_Key, tuple[int, int]]
"""By name and key: the sum of what was counted, and how often something was."""


class Sum(NamedTuple):
    """What was counted in a time.

    Attributes:
        sum: all of it.
        tps: a second.
        avgpt: at a time.
    """

    sum: int
    tps: float
    avgpt: float


class _Window:
    """Old counts, from which on a time is counted.

    Args:
        now: seconds.
        period: seconds from one to the next.
        count: how many periods are counted.
    """

    def __init__(self, now: float, period: float, count: int) -> None:
        self._period = period
        self._before: deque[tuple[float, _Counts]] = deque([(now, {})], count + 1)

    def sample(self, now: float, counts: _Counts) -> None:
        if now - self._before[-1][0] >= self._period:
            self._before.append((now, counts.copy()))

    def sum(self, key: _Key, now: float, count: tuple[int, int]) -> Sum:
        began, counts = self._before[0]
        first, times = counts.get(key, (0, 0))
        entire, took, each = count[0] - first, now - began, count[1] - times
        return Sum(entire, entire / took if took > 0 else 0.0, entire / each if each else 0.0)


class Statistics:
    """Counts by name and key. Thread-safe, if only one thread counts what has a name.

    Args:
        now: seconds of a clock that only goes forward, as all times here.
    """

    def __init__(self, now: float) -> None:
        self._counts: _Counts = {}
        self._minute = _Window(now, 10, 6)
        self._hour = _Window(now, 600, 6)
        self._day = _Window(now, 3600, 24)

    def count(self, name: str, key: str, number: int, times: int = 1) -> None:
        """Count something.

        Args:
            name: what.
            key: whose.
            number: how much.
            times: at how many times.
        """
        place = name, key
        held = self._counts.get(place)
        if held is not None:
            self._counts[place] = held[0] + number, held[1] + times
        elif len(self._counts) < _MOST:
            self._counts[place] = number, times

    def sample(self, now: float) -> None:
        """Take note of the counts; to be called about every ten seconds."""
        for window in (self._minute, self._hour, self._day):
            window.sample(now, self._counts)

    def sums(self, name: str, key: str, now: float) -> tuple[Sum, Sum, Sum] | None:
        """Return what was counted in the last minute, hour and day.

        Each is up to a sixth, the day a twenty-fourth, longer than its name says, and no longer
        than the process has run.

        Returns:
            The sums; None if nothing was ever counted.
        """
        count = self._counts.get((name, key))
        if count is None:
            return None
        minute, hour, day = (
            window.sum((name, key), now, count) for window in (self._minute, self._hour, self._day)
        )
        return minute, hour, day

    def consumed(self, topic: str, group: str, now: float) -> float:
        """Return how many messages of a topic a group got a second, in the last minute."""
        found = self.sums(GROUP_GET_NUMS, f"{topic}@{group}", now)
        return 0.0 if found is None else found[0].tps
