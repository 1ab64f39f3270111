"""Answers that the other ends have not read, over all connections of a server.

What a socket takes is not told, so the count is an upper bound until it is made again. If there is
too much, no large answer is made, and connections that do not read are ended.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, Protocol

LARGE: Final = 64 << 10
"""Bytes of an answer that is only made if all together are not too many."""
_LOOK_SECONDS: Final = 0.05
_STUCK_SECONDS: Final = 1.0
_LEAST_READ: Final = 64 << 10
"""Bytes that a connection has to read in _STUCK_SECONDS, when there is too much."""
_MOST_WOKEN: Final = 4


class Reader(Protocol):
    """A connection whose other end reads answers.

    Attributes:
        promised: bytes of answers that are on their way to the event loop.
    """

    promised: int

    @property
    def held_answers(self) -> int:
        """Bytes of answers that are in memory."""

    @property
    def unread(self) -> int:
        """Bytes of answers that its socket has not taken."""

    def serve_on(self) -> None:
        """Look again whether requests may be handled."""

    def stop_serving(self) -> None:
        """End: it does not read, and others wait."""


class Answers:
    """Counts unread answers.

    Use it in the thread of a running event loop, but for `promise`.

    Args:
        most: bytes after which no more large answers are made.
    """

    def __init__(self, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._used = 0
        # Bytes that it holds; as many were not read, at a time.
        self._of: dict[Reader, list[float]] = {}
        self._thirsty: dict[Reader, None] = {}
        self._promised = 0
        self._promising = threading.Lock()
        self._look: asyncio.TimerHandle | None = None

    @property
    def used(self) -> int:
        """Bytes that are not read, as far as it is known."""
        return self._used

    @property
    def has_room(self) -> bool:
        """Whether one more large answer may be made. From any thread."""
        return self._used + self._promised < self._most

    def promise(self, reader: Reader, count: int) -> None:
        """Count bytes of an answer that is on its way to the event loop. From any thread.

        Args:
            reader: whose answer it is.
            count: the bytes; a negative number when it has come there.
        """
        with self._promising:
            self._promised += count
            reader.promised += count

    def note(self, reader: Reader, held: int) -> None:
        """Take note how much a connection holds."""
        told = self._of.get(reader)
        if told is None:
            if not held:
                return
            self._of[reader] = [held, held, self._loop.time()]
            self._used += held
        else:
            self._used += held - int(told[0])
            told[0] = held
            if not held:
                del self._of[reader]
        if self._used >= self._most:
            self._look_later()
        elif self._thirsty:
            self._wake()

    def wait_for_room(self, reader: Reader) -> None:
        """Have `serve_on` called when there is room."""
        self._thirsty[reader] = None
        self._look_later()

    def closed(self, reader: Reader) -> None:
        """Forget a connection."""
        self._thirsty.pop(reader, None)
        self.note(reader, 0)

    def _wake(self) -> None:
        for reader in list(self._thirsty)[:_MOST_WOKEN]:
            if not self.has_room:
                return
            del self._thirsty[reader]
            reader.serve_on()

    def _look_later(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_SECONDS, self._make_room)

    def _make_room(self) -> None:
        """Count again; end connections that do not read, if that is still too much."""
        self._look = None
        now = self._loop.time()
        stuck = []
        for reader, told in list(self._of.items()):
            self.note(reader, reader.held_answers)
            _, before, since = told
            unread = reader.unread
            if unread > before or before - unread >= _LEAST_READ:
                told[1:] = unread, now
            elif unread and now - since >= _STUCK_SECONDS:
                stuck.append(reader)
        if self._used >= self._most:
            for reader in stuck:
                reader.stop_serving()
                self.note(reader, 0)
        if self._thirsty:
            self._wake()
        if self._thirsty or self._used >= self._most:
            self._look_later()
