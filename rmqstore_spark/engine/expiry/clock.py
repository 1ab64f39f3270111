"""Returns the time for expiry: a clock that is set forward by mistake must not delete messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

_SLACK_MS: Final = 60_000
_PROOF_MS: Final = 3_600_000


class SteadyClock:
    """A clock whose jumps forward count only after an hour. It may go back at any time.

    A jump is a step of more than a minute that the time since the start does not explain. Not
    thread-safe.

    Args:
        clock: returns milliseconds since the epoch.
        running: returns milliseconds since any moment; never jumps.
    """

    def __init__(self, clock: Callable[[], int], running: Callable[[], int]) -> None:
        self._clock = clock
        self._running = running
        self._lead = clock() - running()  # of the clock before the running time
        self._jumped_at: int | None = None

    def __call__(self) -> int:
        """Return milliseconds since the epoch, without jumps that are not an hour old."""
        running = self._running()
        lead = self._clock() - running
        if lead <= self._lead + _SLACK_MS:
            self._lead, self._jumped_at = lead, None
        elif self._jumped_at is None:
            self._jumped_at = running
            _log.warning(
                "The clock was set forward by %d s. Segments expire by the new time in an hour.",
                (lead - self._lead) // 1000,
            )
        elif running - self._jumped_at >= _PROOF_MS:
            self._lead, self._jumped_at = lead, None
        return running + self._lead
