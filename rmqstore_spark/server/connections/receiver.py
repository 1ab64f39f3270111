"""Receives the requests of one connection.

A request is checked as soon as its header is here, before room is taken for its body. The body of a
large request is received straight into the memory in which its handler finds it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.budget import Budget, OverBudgetError
from rmqstore_spark.wire.staged import StagedBytes
from rmqstore_spark.wire.transport import Transport

_STAGED: Final = 32 << 10
_FREE_BYTES: Final = 128 << 10
"""Bytes of bodies of a connection that need no room."""
_SMALL: Final = 64 << 10
"""Bytes of a body that needs no room if it is alone."""
_PACE_SECONDS: Final = 2.0
_SHORTEST_SECONDS: Final = 1.0
_LEAST_RATE: Final = 1 << 20
"""Least bytes per second of a body that was given room, while others wait for room."""
_LOOK_SECONDS: Final = 0.5
_NOTHING: Final = np.empty(0, np.uint8)


def new_room(size: int) -> U1:
    """Return uint8[size], of memory that nobody has."""
    return np.empty(size, np.uint8)


class EndedError(Exception):
    """The connection has ended: the client disconnected, or was disconnected."""


class ClientPace:
    """How fast a client sends, or takes, the bytes for which it was given room.

    Each two seconds count for themselves, and each second for a body that has 1 MiB at most: a
    client that was fast does not earn time to hold room without need, and the last byte of a body
    must come as soon as the others.

    Args:
        size: bytes of the body.
    """

    def __init__(self, size: int) -> None:
        self._span = min(max(size / _LEAST_RATE, _SHORTEST_SECONDS), _PACE_SECONDS)
        self._seconds = 0.0
        self._count = 0

    def is_too_slow(self, seconds: float, count: int) -> bool:
        """Take note of time that was spent on waiting for the client.

        Args:
            seconds: the time, since the last call.
            count: all bytes that have been sent, or taken, so far.

        Returns:
            Whether such a time is over, and the client was too slow in it.
        """
        self._seconds += seconds
        if self._seconds < self._span:
            return False
        is_slow = count - self._count < self._seconds * _LEAST_RATE
        self._seconds, self._count = 0.0, count
        return is_slow


class ReceivedRequest:
    """A request. Its handler releases it.

    Attributes:
        head: the command, without its body.
        data: uint8[bytes], the body, which the handler may write to.
    """

    __slots__ = ("_charge", "_release", "data", "head")

    def __init__(
        self, head: Command, data: U1, charge: Budget | None, release: Callable[[int], None]
    ) -> None:
        self.head = head
        self.data = data
        self._charge = charge
        self._release = release

    def release(self) -> None:
        """Give back the room of the body, and drop its bytes."""
        data, self.data = self.data, _NOTHING
        charge, self._charge = self._charge, None
        if charge is not None:
            charge.give_back(len(data))
        elif len(data):
            self._release(len(data))


class Receiver:
    """Receives requests, in the connection's thread.

    Args:
        transport: the socket.
        budget_of: returns the budget that a request of some size draws on, over all connections.
        admit: is told each command and the size of its body before that is received; what it
            raises, `read` raises. Nothing more can be read then.

    Attributes:
        moved: when a request was complete, in monotonic seconds. A client that sends a byte now and
            then does not move it.
        room_of: returns uint8[size] for the body of a request, once it is admitted.
    """

    def __init__(
        self,
        transport: Transport,
        budget_of: Callable[[Command, int], Budget],
        admit: Callable[[Command, int], None],
    ) -> None:
        self.moved = time.monotonic()
        self.room_of: Callable[[int], U1] = new_room
        self._transport = transport
        self._budget_of = budget_of
        self._admit = admit
        self._staged = StagedBytes(_STAGED)
        self._head: Command | None = None  # of the request that is being received
        self._size = 0
        self._body: memoryview | None = None
        self._data: U1 = _NOTHING
        self._at = 0
        self._pace = ClientPace(0)
        self._charge: Budget | None = None
        self._held = 0
        self._has_filled = False  # room that it was given

    def read(self, seconds: float | None, room_seconds: float) -> ReceivedRequest | None:
        """Return the next request; None if the client has ended the connection before one.

        Args:
            seconds: how long the client may take to send a request, or its body once that has
                room; None for ever.
            room_seconds: how long a body may wait for room.

        Raises:
            EndedError: the client has gone within a request.
            FrameError: what it sent is not a frame.
            OverBudgetError: there was no room for the body in time, or the client was too slow to
                fill the room that others wait for.
            TimeoutError: it took longer than `seconds`.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while not self._is_complete():
            if (budget := self._wanted_budget()) is not None:
                budget.take(self._size, room_seconds, is_known=self._has_filled)
                self._install(budget)
                deadline = math.inf if seconds is None else time.monotonic() + seconds
                continue
            if not self._receive(seconds, deadline):
                if self._head is None and not self._staged:
                    return None
                raise EndedError("the client has gone")
            if deadline < math.inf and time.monotonic() > deadline and not self._is_complete():
                raise TimeoutError("the client took too long for a request")
        return self._take()

    def ready(self) -> ReceivedRequest | None:
        """Return the next request if it has arrived, and if there is room for it."""
        while not self._is_complete():
            if (budget := self._wanted_budget()) is not None:
                if not budget.try_take(self._size):
                    return None
                self._install(budget)
            elif not self._receive_now():  # nothing has come, or the client has gone
                return None
        return self._take()

    @property
    def has_more(self) -> bool:
        """Whether bytes came together with the last request."""
        return len(self._staged) > 0

    def discard(self, seconds: float) -> None:
        """Drop what the client still sends, until it ends the connection or the time is over.

        A socket that is closed with unread bytes makes the client lose the last answers.
        """
        self.close()
        self._staged.drop()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                if not self._transport.recv_into(self._staged.free(), min(left, _LOOK_SECONDS)):
                    return
            except TimeoutError:
                continue

    def close(self) -> None:
        """Give back the room of a request that is not complete."""
        charge, self._charge = self._charge, None
        if charge is not None:
            charge.give_back(self._size)
        self._body, self._data, self._head = None, _NOTHING, None

    # ---- frames --------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        """Put together what is staged; return whether a request is complete."""
        if self._head is None and not self._read_head():
            return False
        if self._body is None:
            if self._wanted_budget() is not None:
                return False
            self._install(None)
        assert self._body is not None  # noqa: S101 - it was installed
        if self._at < self._size:
            self._at += self._staged.take(self._body[self._at :])
        return self._at == self._size

    def _read_head(self) -> bool:
        found = self._staged.head()
        if found is None:
            return False
        self._admit(*found)
        self._staged.pass_head()
        self._head, self._size = found
        self._at = 0
        return True

    def _wanted_budget(self) -> Budget | None:
        """Return the budget that the body must be taken from first."""
        if self._head is None or self._body is not None:
            return None
        if self._size <= _SMALL and not (self._held and self._held + self._size > _FREE_BYTES):
            return None
        return self._budget_of(self._head, self._size)

    def _install(self, charge: Budget | None) -> None:
        """Allocate the body."""
        self._charge = charge  # first: there may be no memory
        self._data = self.room_of(self._size)
        self._body = memoryview(self._data)  # type: ignore[arg-type]
        self._pace = ClientPace(self._size)

    def _take(self) -> ReceivedRequest:
        head, data, charge = self._head, self._data, self._charge
        assert head is not None  # noqa: S101 - the request is complete
        if charge is None:
            self._held += len(data)
        else:
            self._has_filled = True
        self._head, self._body, self._data, self._charge = None, None, _NOTHING, None
        self.moved = time.monotonic()
        return ReceivedRequest(head, data, charge, self._give_back)

    def _give_back(self, count: int) -> None:
        self._held -= count

    # ---- bytes ---------------------------------------------------------------------------------

    def _receive(self, seconds: float | None, deadline: float) -> int:
        """Wait for bytes; return how many came, 0 at the end."""
        rest = self._rest()
        if rest is None:
            return self._stage(self._transport.recv_into(self._staged.free(), seconds))
        if self._charge is None:
            return self._fill(self._transport.recv_into(rest, seconds, whole=True))
        while True:
            begun = time.monotonic()
            try:
                count = self._transport.recv_into(rest, _LOOK_SECONDS, whole=True)
            except TimeoutError:
                count = -1
            now = time.monotonic()
            if count >= 0:
                self._fill(count)
            # Only what the client lets this thread wait counts: the handler may have been busy.
            is_slow = self._pace.is_too_slow(now - begun, self._at)
            if is_slow and self._at < self._size and self._charge.is_contended:
                raise OverBudgetError
            if count >= 0:
                return count
            if now > deadline:
                raise TimeoutError("the client sent nothing for too long")

    def _receive_now(self) -> int:
        rest = self._rest()
        if rest is None:
            return self._stage(self._transport.recv_now(self._staged.free()) or 0)
        return self._fill(self._transport.recv_now(rest) or 0)

    def _rest(self) -> memoryview | None:
        """Return the rest of the body if it is received straight into it.

        A small rest is staged, together with the requests behind it. That of a body which takes
        room is not: its client is watched until the last byte.
        """
        if self._body is None or (self._charge is None and self._size - self._at <= _STAGED):
            return None
        return self._body[self._at :]

    def _fill(self, count: int) -> int:
        self._at += count
        return count

    def _stage(self, count: int) -> int:
        self._staged.add(count)
        return count
