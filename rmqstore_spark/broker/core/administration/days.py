"""How many messages had come and gone when a day began (upstream: BrokerStats)."""

from __future__ import annotations

import time
from typing import Final

_NOTHING: Final = (0, 0)


class Days:
    """The counts with which this day and the one before began, at the machine's midnight.

    The days before the process count as without messages.

    Args:
        now: milliseconds since the epoch.
    """

    def __init__(self, now: int) -> None:
        self._day = _day(now)
        self._mornings = _NOTHING, _NOTHING  # yesterday's, and today's

    def sample(self, now: int, put: int, given: int) -> None:
        """Take note of the counts. A day begins with the first call after midnight.

        Args:
            now: milliseconds since the epoch.
            put, given: the counts since the start.
        """
        day = _day(now)
        if day > self._day:  # a clock that is set back begins no day
            self._day = day
            self._mornings = self._mornings[1], (put, given)

    def figures(self) -> dict[str, int]:
        """Return the counts, with a broker's names."""
        yesterday, today = self._mornings
        return {
            "msgPutTotalYesterdayMorning": yesterday[0],
            "msgPutTotalTodayMorning": today[0],
            "msgGetTotalYesterdayMorning": yesterday[1],
            "msgGetTotalTodayMorning": today[1],
        }


def _day(now: int) -> tuple[int, int]:
    local = time.localtime(now / 1000)
    return local.tm_year, local.tm_yday
