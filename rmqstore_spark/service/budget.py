"""A bound on the bytes of all blocks that are being worked on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Budget", "OverBudgetError"]


class OverBudgetError(Exception):
    """There was no room in time."""


class Budget:
    """Counts bytes in use. Thread-safe.

    Args:
        most: bytes that may be in use at a time. A single use may be larger when it is alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def take(self, count: int, seconds: float) -> None:
        """Use so many bytes, until they are given back.

        Args:
            count: bytes.
            seconds: how long to wait for room.

        Raises:
            OverBudgetError: there was none.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._used or self._used + count <= self._most, seconds
            ):
                raise OverBudgetError
            self._used += count

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
