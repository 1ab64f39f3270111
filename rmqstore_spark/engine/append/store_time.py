"""Assigns storeTimestamps, which never go back even if the clock does.

Searching a queue by time relies on that. While the clock is behind the last one, that one is used
again, so all messages of that period have the same time. Each leap is logged once, and the metrics
show it for as long as it lasts (docs/operate.md, "When the clock went back").
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

_TOLERANCE_MS: Final = 1000
"""A clock synchronized with NTP goes back by less."""
_MOST_AHEAD_MS: Final = 900
_LEAST_SPARE_MS: Final = 100


class Ahead(NamedTuple):
    """The storeTimestamp of records that will be part of the log later.

    Attributes:
        timestamp: milliseconds.
        due: when they may be part of it, by `time.monotonic`. What follows them has no earlier
            storeTimestamp than they, so before that it would be ahead of the clock by too much.
    """

    timestamp: int
    due: float


class StoreTime:
    """Assigns storeTimestamps. `stamp` is for one thread at a time, the rest for any.

    Args:
        clock: returns milliseconds since the epoch.
        last: the last storeTimestamp in the log.
    """

    def __init__(self, clock: Callable[[], int], last: int) -> None:
        self._clock = clock
        self._last = last
        self._lock = threading.Lock()
        self._noted = 0
        self.look()

    @property
    def behind_ms(self) -> int:
        """Milliseconds that the clock is behind the last storeTimestamp; 0 if it is not."""
        return max(0, self._last - self._clock())

    def stamp(self) -> int:
        """Return the storeTimestamp for now: never less than an earlier one."""
        now = self._clock()
        if self._last - now > _TOLERANCE_MS:
            self._note(self._last - now)
        if now > self._last:
            self._last = now
        return self._last

    def stamp_ahead(self, span: int) -> Ahead:
        """Return the storeTimestamp of records that will follow what is stamped meanwhile.

        It is greater than all that `stamp` has returned. Others are stamped by the clock all the
        while: if the records take longer than expected, some get a time that `has_reached` this
        one. Then the records need another one.

        Args:
            span: in how many milliseconds they follow, about; 0 if nothing is stamped meanwhile.
        """
        ahead = 1 + span
        if span:
            ahead += min(_LEAST_SPARE_MS + span // 2, _MOST_AHEAD_MS)
        due = time.monotonic() + max(0, ahead - _MOST_AHEAD_MS) / 1000
        return Ahead(self.stamp() + ahead, due)

    def has_reached(self, timestamp: int) -> bool:
        """Return whether something was stamped with a time, or a later one."""
        return self._last >= timestamp

    def continue_after(self, last: int) -> None:
        """Assign no storeTimestamp before one that is in the log. As `stamp`, for one thread."""
        self._last = max(self._last, last)

    def look(self) -> None:
        """Check whether the clock went back or has caught up, and log it."""
        self._note(self.behind_ms)

    def _note(self, behind: int) -> None:
        with self._lock:
            leapt = behind > self._noted + _TOLERANCE_MS
            caught_up = self._noted > _TOLERANCE_MS >= behind
            self._noted = behind
        if leapt:
            _log.warning(
                "The clock is %.1f s behind the storeTimestamp of the last message (%d): it went "
                "back, or was ahead before. Until it has caught up, all messages get that "
                "timestamp, and readers by time find them there. Check the machine's clock and "
                "its synchronization; see docs/operate.md, \"When the clock went back\".",
                behind / 1000, self._last,
            )  # fmt: skip
        elif caught_up:
            _log.warning("The clock has caught up with the storeTimestamps.")
