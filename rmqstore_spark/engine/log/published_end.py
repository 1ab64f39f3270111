"""Where the CommitLog ends for readers, and a way to wait until it grows."""

from __future__ import annotations

import threading


class PublishedEnd:
    """The physical offset at which the log ends for readers. It only grows.

    One thread at a time moves it; any may read it, or wait for it.

    Args:
        offset: its first value.

    Attributes:
        offset: the physical offset, which `move` sets.
        block: where the last block of a commit begins and ends.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.block = 0, 0
        self._moved = threading.Condition()
        self._waiting = 0

    def move(self, offset: int) -> None:
        """Move the end, and wake those who wait for that."""
        self.offset = offset
        if self._waiting:
            with self._moved:
                self._moved.notify_all()

    def wait_beyond(self, offset: int, timeout: float) -> bool:
        """Wait until the end is beyond an offset; return whether it is.

        Args:
            offset: the physical offset.
            timeout: seconds. `wake` ends the wait earlier.
        """
        with self._moved:
            self._waiting += 1
            try:
                if self.offset <= offset:
                    self._moved.wait(timeout)
                return self.offset > offset
            finally:
                self._waiting -= 1

    def wake(self) -> None:
        """End all waits."""
        with self._moved:
            self._moved.notify_all()
