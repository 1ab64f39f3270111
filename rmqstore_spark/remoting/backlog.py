"""The requests of a connection that are not finished, and the bytes that they hold."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from rmqstore_spark.remoting.limits import Limits

_MOST_TRIED: Final = 8
"""Most postponed requests that are tried at once."""


_MOST_TAKEN: Final = 1 << 20
"""Bytes of requests that are taken at once, but for the last of them."""


class Holding(Protocol):
    """What holds memory."""

    @property
    def held(self) -> int:
        """Bytes that it holds."""


_H = TypeVar("_H", bound=Holding)


class Backlog(Generic[_H]):
    """Requests: first they wait, then they are handled, then they are finished.

    Args:
        limits: of the connection.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[_H] = deque()
        self._postponed: deque[_H] = deque()
        self._waiting_bytes = 0
        self._handled = 0
        self._handled_bytes = 0

    @property
    def may_shrink(self) -> bool:
        """Whether a request waits that may be handled now."""
        return bool(self._waiting) and not self._is_full

    @property
    def next_size(self) -> int:
        """Bytes of the request that waits for longest; 0 if none does."""
        return self._waiting[0].held if self._waiting else 0

    @property
    def has_postponed(self) -> bool:
        """Whether a request waits until there is room for its answer."""
        return bool(self._postponed)

    @property
    def may_grow(self) -> bool:
        """Whether more requests should be read."""
        return (
            not self._is_full
            and len(self._waiting) < self._limits.group
            and len(self._postponed) < self._limits.in_flight
            and self.held < self._limits.connection_held
        )

    @property
    def is_empty(self) -> bool:
        """Whether all requests are finished."""
        return not self._waiting and not self._postponed and not self._handled

    @property
    def held(self) -> int:
        """Bytes that all requests hold."""
        return self._waiting_bytes + self._handled_bytes

    def add(self, request: _H) -> None:
        """Add a request that has arrived."""
        self._waiting.append(request)
        self._waiting_bytes += request.held

    def add_first(self, request: _H) -> None:
        """Add a request that was taken a moment ago."""
        self._waiting.appendleft(request)
        self._waiting_bytes += request.held

    def postpone(self, request: _H) -> None:
        """Add a request that was taken before, and for whose answer there was no room."""
        self._postponed.append(request)
        self._waiting_bytes += request.held

    def take_postponed(self, most: int) -> list[_H]:
        """Return the next requests that were postponed: a few; the first may fill the room."""
        group = [
            self._postponed.popleft() for _ in range(min(most, _MOST_TRIED, len(self._postponed)))
        ]
        for request in group:
            self._waiting_bytes -= request.held
            self._handled += 1
            self._handled_bytes += request.held
        return group

    def take(self, most: int) -> list[_H]:
        """Return the next requests to be handled, as far as it is not full: up to a large one."""
        group: list[_H] = []
        size = 0
        while len(group) < most and size < _MOST_TAKEN and self.may_shrink:
            request = self._waiting.popleft()
            size += request.held
            self._waiting_bytes -= request.held
            self._handled += 1
            self._handled_bytes += request.held
            group.append(request)
        return group

    def finished(self, request: _H) -> None:
        """Take note that a request was handled."""
        self._handled -= 1
        self._handled_bytes -= request.held

    def forget_waiting(self) -> list[_H]:
        """Drop the requests that wait, and return them."""
        dropped = [*self._waiting, *self._postponed]
        self._waiting.clear()
        self._postponed.clear()
        self._waiting_bytes = 0
        return dropped

    @property
    def _is_full(self) -> bool:
        limits = self._limits
        return self._handled >= limits.in_flight or self._handled_bytes >= limits.connection_held
