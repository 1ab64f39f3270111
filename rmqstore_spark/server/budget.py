"""A bound on the bytes that all clients together make the process hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Budget", "OverBudgetError", "Room"]

_SMALL: Final = 1 << 20


class OverBudgetError(Exception):
    """There was no room in time."""


class Budget:
    """Counts bytes in use; who waits is served in turn. Thread-safe.

    Args:
        most: bytes that may be in use at a time. A single use may be larger when it is alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._queue)

    def try_take(self, count: int) -> bool:
        """Use so many bytes if there is room now and nobody waits; tells whether there was."""
        with self._changed:
            if self._queue or not self._fits(count):
                return False
            self._used += count
            return True

    def take(self, count: int, seconds: float) -> None:
        """Use so many bytes, until they are given back.

        Args:
            count: bytes.
            seconds: how long to wait for room.

        Raises:
            OverBudgetError: there was none.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                if not self._changed.wait_for(
                    lambda: self._queue[0] is ticket and self._fits(count), seconds
                ):
                    raise OverBudgetError
                self._used += count
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def give_back(self, count: int) -> None:
        """Use so many bytes less."""
        with self._changed:
            self._used -= count
            self._changed.notify_all()

    @contextmanager
    def use(self, count: int, seconds: float) -> Iterator[None]:
        """Use so many bytes for as long as the context lasts; see `take`."""
        self.take(count, seconds)
        try:
            yield
        finally:
            self.give_back(count)

    def _fits(self, count: int) -> bool:
        return not self._used or self._used + count <= self._most


class Room:
    """Room for messages: those of up to 1 MiB have a share of their own.

    So a put of a few messages does not wait until hundreds of tasks have sent their megabytes.

    Args:
        most: bytes of all messages together.
        small: bytes of `most` that only small ones may use.
    """

    def __init__(self, most: int, small: int) -> None:
        self.large = Budget(most - small)
        self.small = Budget(small)

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.large.used + self.small.used

    def of(self, size: int) -> Budget:
        """The budget that a message of some size draws on."""
        return self.small if size <= _SMALL else self.large
