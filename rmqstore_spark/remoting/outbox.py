"""What is sent on a connection, until the socket has taken it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

HIGH_WATER: Final = 1 << 20
"""Bytes that wait to be written; with more, no request is handled, and none is sent, until the
other end reads."""


class Outbox:
    """Bytes that wait to be written.

    Attributes:
        stuck_since: the event loop's time since when the other end has not read; 0: it reads.
        is_behind: whether the socket had not taken all that was given before, when it got more.
    """

    def __init__(self) -> None:
        self.stuck_since = 0.0
        self._parts: list[bytes] = []
        self._bytes = 0
        self._given: deque[int] = deque()
        self._given_bytes = 0
        self.is_behind = False
        self._room = asyncio.Event()
        self._room.set()

    def held(self, unsent: int) -> int:
        """Return how many bytes it keeps in memory.

        A transport keeps all that it was given at once until the socket has taken the last of it.

        Args:
            unsent: bytes that the transport has not sent.
        """
        while self._given and self._given_bytes - self._given[0] >= unsent:
            self._given_bytes -= self._given.popleft()
        return self._bytes + self._given_bytes

    def unread(self, unsent: int) -> int:
        """Return how many bytes the socket has not taken; see `held`."""
        return self._bytes + unsent

    @property
    def has_room(self) -> bool:
        """Whether more should be sent."""
        return self._room.is_set()

    def add(self, parts: Sequence[bytes]) -> None:
        """Add the parts of a frame."""
        self._parts += parts
        self._bytes += sum(map(len, parts))
        if self._bytes >= HIGH_WATER:
            self._room.clear()

    def flush(self, transport: asyncio.WriteTransport) -> int:
        """Give everything to the transport; return how many bytes that was."""
        parts, count = self._parts, self._bytes
        if parts:
            self._parts, self._bytes = [], 0
            self.is_behind = bool(self._given) and self.held(transport.get_write_buffer_size()) > 0
            self._given.append(count)
            self._given_bytes += count
            transport.writelines(parts)
        if not self.stuck_since:
            self._room.set()
        return count

    def pause(self, now: float) -> None:
        """Take note that the other end does not read."""
        self.stuck_since = now
        self._room.clear()

    def resume(self) -> None:
        """Take note that the other end reads again."""
        self.stuck_since = 0.0
        if self._bytes < HIGH_WATER:
            self._room.set()

    def close(self) -> None:
        """Drop everything: nothing can be sent any more, and nobody has to wait."""
        self._parts, self._bytes = [], 0
        self._given.clear()
        self._given_bytes = 0
        self._room.set()

    async def wait_for_room(self) -> None:
        """Return when more should be sent, or when nothing can be sent any more."""
        await self._room.wait()
