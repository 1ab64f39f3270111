"""How many frames a client may send that carry nothing.

A frame costs the process tens of microseconds, whatever it says. A client needs few besides those
with data: acknowledgements, pings, windows that grow with what it is sent. Millions of others would
keep a core busy, even after their sender has gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rmqstore_spark.server.flight.frames import ErrorCode, ProtocolError

__all__ = ["FrameAllowance"]

_STRANGERS: Final = 200
_MOST: Final = 1000
_PER_SECOND: Final = 200
_DATA: Final = 64
"""Bytes of data that pay for the frame they come in."""
_SENT: Final = 1024
"""Bytes that a client was sent, for which it may widen a window once."""
_CALL: Final = 8
"""Frames that a call is worth; giving it up costs as many."""


class FrameAllowance:
    """Counts the frames of one connection. Used by its thread.

    Before a client is trusted, each frame counts, and what it does pays for none. Later, data and
    calls pay for frames, and so does time.

    Args:
        clock: returns seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = _STRANGERS
        self._since: float | None = None
        self._sent = 0

    def trust(self) -> None:
        """Allow what a client needs whose call was admitted."""
        self._left, self._since = _MOST, self._clock()

    def frame(self) -> None:
        """Count a frame.

        Raises:
            ProtocolError: there are too many.
        """
        self._spend(1)

    def data(self, size: int) -> None:
        """Let bytes of data pay for the frame that was counted."""
        self._earn(size // _DATA)

    def call(self) -> None:
        """Let a call pay for its frames."""
        self._earn(_CALL)

    def reset(self) -> None:
        """Count a call that the client gave up.

        Raises:
            ProtocolError: there are too many.
        """
        self._spend(_CALL)

    def sent(self, total: int) -> None:
        """Let bytes that the client was sent pay for the windows that it widens.

        Args:
            total: all bytes that it was sent.
        """
        count = (total - self._sent) // _SENT
        self._sent += count * _SENT
        self._earn(count)

    def _earn(self, count: int) -> None:
        if self._since is not None:
            self._left = min(self._left + count, _MOST)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0 and self._since is not None:
            earned = int((self._clock() - self._since) * _PER_SECOND)
            self._since += earned / _PER_SECOND
            self._earn(earned)
        if self._left < 0:
            why = "too many frames before the first call"
            if self._since is not None:
                why = "too many frames without data"
            raise ProtocolError(why, ErrorCode.ENHANCE_YOUR_CALM)
