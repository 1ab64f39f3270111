"""Limits the bytes that all clients together can make the process hold."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers
from typing import Final, TypeAlias

_SMALL: Final = 1 << 20
_LATER_SECONDS: Final = 9.0
"""Less than the time that a message may wait for room."""
_Ticket: TypeAlias = tuple[float, int]
"""When a use came, or its turn would be if nothing larger waited; and its number."""


class OverBudgetError(Exception):
    """No room became free in time."""


class Budget:
    """Counts bytes in use, and serves waiting callers in turn. Thread-safe.

    Known clients take turns with newcomers: hundreds that come and ask do not make the others wait
    for all of them.

    Args:
        most: maximum bytes in use. A single use may be larger when it is alone.
        seconds_a_mib: a use waits as if it had come later by so much for each MiB.
    """

    def __init__(self, most: int, *, seconds_a_mib: float = 0.0) -> None:
        self._most = most
        self._seconds_a_byte = seconds_a_mib / (1 << 20)
        self._numbers = numbers()
        self._used = 0
        self._changed = threading.Condition()
        self._queues: tuple[list[_Ticket], list[_Ticket]] = [], []
        self._turn = 0

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def is_contended(self) -> bool:
        """Whether a caller waits for room."""
        return any(self._queues)

    def try_take(self, count: int) -> bool:
        """Take bytes if there is room and nobody waits; return whether it succeeded."""
        with self._changed:
            if self.is_contended or not self._fits(count):
                return False
            self._used += count
            return True

    def take(self, count: int, seconds: float, *, is_known: bool = False) -> None:
        """Take bytes, waiting for room if necessary.

        Args:
            count: bytes.
            seconds: how long to wait for room.
            is_known: whether they are for a client that has made good use of room before.

        Raises:
            OverBudgetError: no room became free in time.
        """
        ticket = time.monotonic() + count * self._seconds_a_byte, next(self._numbers)
        queue = self._queues[is_known]
        with self._changed:
            insort(queue, ticket)
            try:
                if not self._changed.wait_for(
                    lambda: self._next() is ticket and self._fits(count), seconds
                ):
                    raise OverBudgetError
                self._used += count
                self._turn = 1 - is_known
            finally:
                queue.remove(ticket)
                self._changed.notify_all()

    def _next(self) -> _Ticket:
        queue = self._queues[self._turn] or self._queues[1 - self._turn]
        return queue[0]

    def give_back(self, count: int) -> None:
        """Give back bytes that were taken."""
        with self._changed:
            self._used -= count
            self._changed.notify_all()

    @contextmanager
    def use(self, count: int, seconds: float) -> Iterator[None]:
        """Take bytes for the duration of the context; see `take`."""
        self.take(count, seconds)
        try:
            yield
        finally:
            self.give_back(count)

    def _fits(self, count: int) -> bool:
        return not self._used or self._used + count <= self._most


class Room:
    """Room for messages, with a share that only messages of up to 1 MiB can use.

    A put of a few messages therefore does not wait for hundreds of tasks that send megabytes. Of
    small messages that wait, smaller ones come before larger ones, unless these have waited for
    long: they do not wait for hundreds of clients that announce a MiB, and send it slowly.

    Args:
        most: bytes of all messages together.
        small: the part of `most` that only small messages can use.
    """

    def __init__(self, most: int, small: int) -> None:
        self.large = Budget(most - small)
        self.small = Budget(small, seconds_a_mib=_LATER_SECONDS)

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.large.used + self.small.used

    def of(self, size: int) -> Budget:
        """Return the budget that a message of this size draws on."""
        return self.small if size <= _SMALL else self.large
