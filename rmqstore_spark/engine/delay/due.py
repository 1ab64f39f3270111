"""Knows which messages of a delay level have waited long enough, whatever the clock says.

The time at which a message is due is its storeTimestamp plus its delay. If the clock went back, it
lies too far in the future: storeTimestamps never go back. So a message is also due when it was seen
in its queue for as long as its delay, by a clock that does not leap.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MOST_NOTES: Final = 1000
_LEAST_STEP_S: Final = 0.1


class Waiting:
    """The messages of a delay level, by when they were seen. Used by one thread.

    However many messages wait, about a thousand notes are kept of them, so a message can seem to
    have arrived later than it did by a thousandth of its delay, or by 100 ms.

    Args:
        delay: seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._step = max(delay / _MOST_NOTES, _LEAST_STEP_S)
        self._notes: deque[tuple[int, float]] = deque()
        self._end = 0
        self._ripe = 0

    def note(self, end: int, now: float) -> None:
        """Note that the queue ends at an offset.

        Args:
            end: one past the offset of its last message.
            now: seconds of a clock that does not leap.
        """
        if end > self._end and (not self._notes or now - self._notes[-1][1] >= self._step):
            self._notes.append((end, now))
            self._end = end

    def ripe(self, now: float) -> int:
        """Return the offset up to which all messages have waited for as long as the delay."""
        while self._notes and now - self._notes[0][1] >= self._delay:
            self._ripe = self._notes.popleft()[0]
        return self._ripe
