"""Receives the requests of one connection.

A request is checked as soon as its header is here, before room is taken for its body. The body of a
large request is received straight into the memory in which its handler finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from rmqstore_spark.errors import FrameError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.remoting.codec.command import Command, decode_header
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, frame_lengths
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.wire.transport import Transport

__all__ = ["EndedError", "Receiver", "Request", "is_too_slow"]

_STAGED: Final = 32 << 10
_MOST_HEADER: Final = 16 << 10
_MOST_FRAME: Final = 1 << 31
_FREE_BYTES: Final = 128 << 10
"""Bytes of bodies of a connection that need no room."""
_SMALL: Final = 64 << 10
"""Bytes of a body that needs no room if it is alone."""
_GRACE_SECONDS: Final = 2.0
_LEAST_RATE: Final = 1 << 20
"""Least bytes per second of a body that was given room, while others wait for room."""
_LOOK_SECONDS: Final = 0.5
_NOTHING: Final = np.empty(0, np.uint8)


class EndedError(Exception):
    """The connection has ended: the client disconnected, or was disconnected."""


def is_too_slow(seconds: float, count: int) -> bool:
    """Return whether a client sent, or took, its bytes too slowly, while others wait for room."""
    late = seconds - _GRACE_SECONDS
    return late > 0 and count < late * _LEAST_RATE


class Request:
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
        room: the room for bodies, over all connections.
        admit: is told each command and the size of its body before that is received; what it
            raises, `read` raises. Nothing more can be read then.

    Attributes:
        moved: when something arrived, in monotonic seconds.
    """

    def __init__(
        self, transport: Transport, room: Room, admit: Callable[[Command, int], None]
    ) -> None:
        self.moved = time.monotonic()
        self._transport = transport
        self._room = room
        self._admit = admit
        self._staged = memoryview(bytearray(_STAGED))
        self._begin = self._end = 0
        self._head: Command | None = None  # of the request that is being received
        self._size = 0
        self._body: memoryview | None = None
        self._data: U1 = _NOTHING
        self._at = 0
        self._since = 0.0
        self._charge: Budget | None = None
        self._held = 0

    def read(self, seconds: float | None, room_seconds: float) -> Request | None:
        """Return the next request; None if the client has ended the connection before one.

        Args:
            seconds: how long the client may send nothing; None for ever.
            room_seconds: how long a body may wait for room.

        Raises:
            EndedError: the client has gone within a request.
            FrameError: what it sent is not a frame.
            OverBudgetError: there was no room for the body in time, or the client was too slow to
                fill the room that others wait for.
            TimeoutError: it sent nothing for `seconds`.
        """
        while not self._is_complete():
            if self._needs_room():
                budget = self._room.of(self._size)
                budget.take(self._size, room_seconds)
                self._install(budget)
            elif not self._receive(seconds):
                if self._head is None and self._begin == self._end:
                    return None
                raise EndedError("the client has gone")
        return self._take()

    def ready(self) -> Request | None:
        """Return the next request if it has arrived, and if there is room for it."""
        while not self._is_complete():
            if self._needs_room():
                budget = self._room.of(self._size)
                if not budget.try_take(self._size):
                    return None
                self._install(budget)
            elif not self._receive_now():  # nothing has come, or the client has gone
                return None
        return self._take()

    def discard(self, seconds: float) -> None:
        """Drop what the client still sends, until it ends the connection or the time is over.

        A socket that is closed with unread bytes makes the client lose the last answers.
        """
        self.close()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                if not self._transport.recv_into(self._staged, min(left, _LOOK_SECONDS)):
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
            if self._needs_room():
                return False
            self._install(None)
        assert self._body is not None  # noqa: S101 - it was installed
        count = min(self._end - self._begin, self._size - self._at)
        if count:
            self._body[self._at : self._at + count] = self._staged[
                self._begin : self._begin + count
            ]
            self._begin += count
            self._at += count
        return self._at == self._size

    def _read_head(self) -> bool:
        staged = self._end - self._begin
        if staged < HEAD_BYTES:
            return False
        form, header, body = frame_lengths(self._staged, self._begin, _MOST_FRAME)
        if header > _MOST_HEADER:
            raise FrameError(f"a header has {header} bytes; the most are {_MOST_HEADER}")
        if staged < HEAD_BYTES + header:
            return False
        at = self._begin + HEAD_BYTES
        head = decode_header(form, self._staged[at : at + header].tobytes())
        self._admit(head, body)
        self._begin = at + header
        self._head, self._size, self._at = head, body, 0
        return True

    def _needs_room(self) -> bool:
        if self._head is None or self._body is not None:
            return False
        return self._size > _SMALL or (self._held > 0 and self._held + self._size > _FREE_BYTES)

    def _install(self, charge: Budget | None) -> None:
        """Allocate the body."""
        self._data = np.empty(self._size, np.uint8)
        self._body = memoryview(self._data)  # type: ignore[arg-type]
        self._charge = charge
        self._since = time.monotonic()

    def _take(self) -> Request:
        head, data, charge = self._head, self._data, self._charge
        assert head is not None  # noqa: S101 - the request is complete
        if charge is None:
            self._held += len(data)
        self._head, self._body, self._data, self._charge = None, None, _NOTHING, None
        self.moved = time.monotonic()
        return Request(head, data, charge, self._give_back)

    def _give_back(self, count: int) -> None:
        self._held -= count

    # ---- bytes ---------------------------------------------------------------------------------

    def _receive(self, seconds: float | None) -> int:
        """Wait for bytes; return how many came, 0 at the end."""
        if self._body is not None and self._size - self._at > _STAGED:
            return self._receive_body(self._body, seconds)
        return self._stage(self._transport.recv_into(self._free(), seconds))

    def _receive_body(self, body: memoryview, seconds: float | None) -> int:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                count = self._transport.recv_into(body[self._at :], _LOOK_SECONDS, whole=True)
            except TimeoutError:
                self._check_pace()
                if deadline is not None and time.monotonic() > deadline:
                    raise
                continue
            self._at += count
            self.moved = time.monotonic()
            if self._at < self._size:
                self._check_pace()
            return count

    def _check_pace(self) -> None:
        charge = self._charge
        if charge is None or not charge.is_contended:
            return
        if is_too_slow(time.monotonic() - self._since, self._at):
            raise OverBudgetError

    def _receive_now(self) -> int:
        if self._body is not None and self._size - self._at > _STAGED:
            count = self._transport.recv_now(self._body[self._at :]) or 0
            self._at += count
            return count
        return self._stage(self._transport.recv_now(self._free()) or 0)

    def _free(self) -> memoryview:
        """Return the part of the stage that is free, which is never empty."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._staged) - self._end < _MOST_HEADER:
            rest = self._staged[self._begin : self._end].tobytes()
            self._staged[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        return self._staged[self._end :]

    def _stage(self, count: int) -> int:
        self._end += count
        return count
