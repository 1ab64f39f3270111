"""Log lines about other ends: of each, a few a minute, however often it gives cause for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SECONDS: Final = 60.0
_MAX_KEYS: Final = 1024


@dataclass(slots=True)
class _Told:
    """What was logged of one host for one cause.

    Attributes:
        since: when the minute began.
        lines: that were logged in it.
        left_out: lines that were not logged, since the last one that was.
    """

    since: float
    lines: int = 0
    left_out: int = 0


class PeerLog:
    """Logs with a bound of lines a minute for each host and cause.

    The next line that is logged says how many were left out. Hosts beyond the first thousand of a
    minute share one bound.

    Args:
        logger: where to.
        most: lines a minute for each host and cause.
        clock: seconds of a clock that only goes forward.
    """

    def __init__(
        self, logger: logging.Logger, most: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._most = most
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}

    def log(
        self, level: int, peer: str, text: str, *values: object, error: Exception | None = None
    ) -> None:
        """Log a line, if there were not too many like it.

        Args:
            level: of `logging`.
            peer: address of the other end that gave the cause, as `host:port`.
            text: a sentence with `%` places, the same for the same cause.
            values: for its places.
            error: whose traceback is logged too.
        """
        now = self._clock()
        told = self._find(peer.rpartition(":")[0], text, now)
        if now - told.since >= _SECONDS:
            told.since, told.lines = now, 0
        if told.lines >= self._most:
            told.left_out += 1
            return
        told.lines += 1
        if told.left_out:
            text += " %d lines like this one were left out before it."
            values = (*values, told.left_out)
            told.left_out = 0
        self._logger.log(level, text, *values, exc_info=error)

    def info(self, peer: str, text: str, *values: object) -> None:
        """Log a line for information."""
        self.log(logging.INFO, peer, text, *values)

    def warning(self, peer: str, text: str, *values: object) -> None:
        """Log a warning."""
        self.log(logging.WARNING, peer, text, *values)

    def _find(self, host: str, text: str, now: float) -> _Told:
        found = self._told.get((host, text))
        if found is not None:
            return found
        if len(self._told) >= _MAX_KEYS:
            old = [key for key, told in self._told.items() if now - told.since >= _SECONDS]
            for key in old:
                del self._told[key]
            if not old:
                host = ""
        return self._told.setdefault((host, text), _Told(now))
