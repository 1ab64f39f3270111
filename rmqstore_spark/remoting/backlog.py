"""The requests of a connection that are not finished, and the bytes that they hold."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from rmqstore_spark.remoting.limits import Limits

__all__ = ["Backlog", "Holding"]


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
        self._waiting_bytes = 0
        self._handled = 0
        self._handled_bytes = 0

    @property
    def may_shrink(self) -> bool:
        """Whether a request waits that may be handled now."""
        return bool(self._waiting) and not self._is_full

    @property
    def may_grow(self) -> bool:
        """Whether more requests should be read."""
        return (
            not self._is_full
            and len(self._waiting) < self._limits.group
            and self.held < self._limits.connection_held
        )

    @property
    def is_empty(self) -> bool:
        """Whether all requests are finished."""
        return not self._waiting and not self._handled

    @property
    def held(self) -> int:
        """Bytes that all requests hold."""
        return self._waiting_bytes + self._handled_bytes

    def add(self, request: _H) -> None:
        """Add a request that has arrived."""
        self._waiting.append(request)
        self._waiting_bytes += request.held

    def take(self, most: int) -> list[_H]:
        """Return the next requests to be handled, as far as it is not full."""
        group: list[_H] = []
        while len(group) < most and self.may_shrink:
            request = self._waiting.popleft()
            self._waiting_bytes -= request.held
            self._handled += 1
            self._handled_bytes += request.held
            group.append(request)
        return group

    def finished(self, request: _H) -> None:
        """Take note that a request was handled."""
        self._handled -= 1
        self._handled_bytes -= request.held

    def forget_waiting(self) -> None:
        """Drop the requests that wait."""
        self._waiting.clear()
        self._waiting_bytes = 0

    @property
    def _is_full(self) -> bool:
        limits = self._limits
        return self._handled >= limits.in_flight or self._handled_bytes >= limits.connection_held
