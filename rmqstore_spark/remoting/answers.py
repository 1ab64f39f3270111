"""Answers that the other ends have not read: of a connection, and over all of a server.

asyncio does not say how much of an answer it has written, so this may count too much until it
looks again. If there is too much, no large answer is made, and connections that do not read are
ended.
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


HIGH_WATER: Final = 1 << 20
"""Bytes that wait to be written; with more, no request is handled, and none is sent, until the
other end reads."""


class Answering(Protocol):
    """A connection whose other end reads answers."""

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
        self._of: dict[Outbox, list[float]] = {}
        self._thirsty: dict[Outbox, None] = {}
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

    def promise(self, outbox: Outbox, count: int) -> None:
        """Count bytes of an answer that is on its way to the event loop. From any thread.

        Args:
            outbox: on whose way it is.
            count: the bytes; a negative number when it has come there.
        """
        with self._promising:
            self._promised += count
            outbox.promised += count

    def note(self, outbox: Outbox, held: int) -> None:
        """Take note how much a connection holds."""
        told = self._of.get(outbox)
        if told is None:
            if not held:
                return
            self._of[outbox] = [held, held, self._loop.time()]
            self._used += held
        else:
            self._used += held - int(told[0])
            told[0] = held
            if not held:
                del self._of[outbox]
        if self._used >= self._most:
            self._look_later()
        elif self._thirsty:
            self._wake()

    def wait_for_room(self, outbox: Outbox) -> None:
        """Have `serve_on` called when there is room."""
        self._thirsty[outbox] = None
        self._look_later()

    def closed(self, outbox: Outbox) -> None:
        """Forget a connection."""
        self._thirsty.pop(outbox, None)
        self.note(outbox, 0)

    def _wake(self) -> None:
        for outbox in list(self._thirsty)[:_MOST_WOKEN]:
            if not self.has_room:
                return
            del self._thirsty[outbox]
            outbox.connection.serve_on()

    def _look_later(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_SECONDS, self._make_room)

    def _make_room(self) -> None:
        """Count again; end connections that do not read, if that is still too much."""
        self._look = None
        now = self._loop.time()
        stuck = []
        for outbox, told in list(self._of.items()):
            self.note(outbox, outbox.held)
            _, before, since = told
            unread = outbox.unread
            if unread > before or before - unread >= _LEAST_READ:
                told[1:] = unread, now
            elif unread and now - since >= _STUCK_SECONDS:
                stuck.append(outbox)
        if self._used >= self._most:
            for outbox in stuck:
                outbox.connection.stop_serving()
                self.note(outbox, 0)
        if self._thirsty:
            self._wake()
        if self._thirsty or self._used >= self._most:
            self._look_later()


class Outbox:
    """What was sent on a connection, until the socket has taken it.

    Use it in the thread of the event loop, but for `promise` and the questions for room.

    Args:
        connection: its connection.
        answers: of all connections.

    Attributes:
        promised: bytes of answers that are on their way to the event loop.
        has_room: whether more should be sent.
        stuck_since: the event loop's time since when the other end has not read; 0: it reads.
    """

    def __init__(self, connection: Answering, answers: Answers) -> None:
        self.connection = connection
        self.promised = 0
        self.has_room = True
        self.stuck_since = 0.0
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._parts: list[bytes] = []
        self._bytes = 0
        self._given: list[int] = []  # a deque or an event would cost 600 bytes a connection
        self._given_bytes = 0
        self._is_counted = False
        self._is_settling = False
        self._roomy: asyncio.Future[None] | None = None

    @property
    def reads_answers(self) -> bool:
        """Whether more answers should be made: the other end reads its own. From any thread."""
        return self.has_room and self.promised < HIGH_WATER

    @property
    def held(self) -> int:
        """Bytes in memory. A transport keeps all that it was given at once until all is taken."""
        given, left, unsent, taken = self._given, self._given_bytes, self._unsent, 0
        if not unsent:
            given.clear()
            self._given_bytes = 0
            return self._bytes
        while taken < len(given) and left - given[taken] >= unsent:
            left -= given[taken]
            taken += 1
        del given[:taken]
        self._given_bytes = left
        return self._bytes + self._given_bytes

    @property
    def unread(self) -> int:
        """Bytes that the socket has not taken."""
        return self._bytes + self._unsent

    def promise(self, count: int) -> None:
        """Count bytes of an answer that is on its way to the event loop. From any thread.

        Args:
            count: the bytes; a negative number when it has come there.
        """
        self._answers.promise(self, count)

    def open(self, transport: asyncio.WriteTransport) -> None:
        """Write to a transport from now on."""
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._transport = transport

    def add(self, head: bytes, body: bytes) -> None:
        """Add a frame."""
        size = len(head)
        self._parts.append(head)
        if body:
            self._parts.append(body)
            size += len(body)
        self._bytes += size
        if self._bytes >= HIGH_WATER:
            self._let(False)
        if body and len(body) > LARGE:
            self._note()

    def flush(self) -> bool:
        """Give everything to the transport; return whether that was anything."""
        parts, count, transport = self._parts, self._bytes, self._transport
        if not parts or transport is None:
            return False
        self._parts, self._bytes = [], 0
        is_behind = False
        if not self._given or not transport.get_write_buffer_size():
            self._given, self._given_bytes = [count], count  # all before is taken, as nearly always
        else:
            is_behind = self.held > 0
            self._given.append(count)
            self._given_bytes += count
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if not self.has_room and not self.stuck_since:
            self._let(True)
        looks = count > LARGE or is_behind or self._is_counted
        if looks and self._note() > LARGE and not self._is_settling:
            # Sockets take it at the end of this turn: look what they have left.
            self._is_settling = True
            self._loop.call_soon(self._settle)
        return True

    def pause(self) -> None:
        """Take note that the other end does not read."""
        self.stuck_since = self._loop.time()
        self._let(False)

    def resume(self) -> None:
        """Take note that the other end reads again."""
        self.stuck_since = 0.0
        if self._bytes < HIGH_WATER:
            self._let(True)
        self._note()

    def drop(self) -> None:
        """Drop everything: nothing can be sent any more, and nobody has to wait."""
        self._parts, self._bytes = [], 0
        self._given.clear()
        self._given_bytes = 0
        self._let(True)

    def close(self) -> None:
        """Drop everything, and count no more: the connection has ended."""
        self._transport = None
        self.drop()
        self._answers.closed(self)

    async def wait_for_room(self) -> None:
        """Return when more should be sent, or when nothing can be sent any more."""
        while not self.has_room:
            self._roomy = self._roomy or self._loop.create_future()
            await asyncio.shield(self._roomy)

    @property
    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _let(self, has_room: bool) -> None:
        self.has_room = has_room
        if has_room and self._roomy is not None:
            self._roomy.set_result(None)
            self._roomy = None

    def _settle(self) -> None:
        self._is_settling = False
        self._note()

    def _note(self) -> int:
        held = self.held
        self._answers.note(self, held)
        self._is_counted = held > 0
        return held
