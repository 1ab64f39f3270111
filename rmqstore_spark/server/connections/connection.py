"""One connection of a client: its requests, each with a handler, and the answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import frame_head
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.connections.receiver import EndedError, Receiver, Request, is_too_slow
from rmqstore_spark.wire.failures import ILLEGAL
from rmqstore_spark.wire.protocol import STATUS_FIELD
from rmqstore_spark.wire.transport import Transport

__all__ = ["ClientConnection", "Requests"]

_log = logging.getLogger(__name__)

_ROOM_SECONDS: Final = 10.0
_END_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 0.5
_MOST_FRAME: Final = 1 << 31


class Requests(Protocol):
    """Admits and handles the requests of connections.

    Attributes:
        room: the room for their bodies.
    """

    room: Room

    def admit(self, connection: ClientConnection, head: Command, size: int) -> None:
        """Admit a request whose body, of `size` bytes, has not been received, or raise an error."""

    def handle(self, connection: ClientConnection, request: Request) -> bool:
        """Handle a request, and send its answers; return whether more requests may follow."""

    def refuse(self, connection: ClientConnection, error: Exception) -> None:
        """Answer a request that was not admitted, or for which there was no room."""


class ClientConnection:
    """One connection. All but `fail` and `hang_up` are for its own thread.

    Args:
        transport: its socket.
        requests: handles its requests.

    Attributes:
        is_trusted: whether one of its requests was admitted.
        since: monotonic seconds when it was accepted.
        has_call: whether a request is being handled.
        has_stream: whether blocks are expected.
        blocked_since: when an answer began to wait for the client, in monotonic seconds, or None.
        failure: why the call in progress was ended from outside, or None.
        opaque: number of the request that is answered.
    """

    def __init__(self, transport: Transport, requests: Requests) -> None:
        self.transport = transport
        self.is_trusted = False
        self.since = time.monotonic()
        self.has_call = False
        self.has_stream = False
        self.blocked_since: float | None = None
        self.failure: Exception | None = None
        self.opaque = 0
        self._requests = requests
        self._moved = self.since
        self._receiver = Receiver(transport, requests.room, self._admit)

    @property
    def moved(self) -> float:
        """When the client last sent a request or took bytes, in monotonic seconds."""
        return max(self._moved, self._receiver.moved)

    def run(self) -> None:
        """Handle requests until the connection ends."""
        try:
            self.transport.begin()
            while (request := self._next()) is not None:
                self.has_call = True
                try:
                    goes_on = self._requests.handle(self, request)
                finally:
                    request.release()
                    self.has_call = False
                if not goes_on:
                    self.part(_END_SECONDS if self.is_trusted else _REFUSED_SECONDS)
                    break
        except FrameError as error:
            level = logging.INFO if self.is_trusted else logging.DEBUG
            _log.log(level, "Closed the connection from %s: %s.", self.transport.peer, error)
            if not self.is_trusted:  # a client that wants TLS learns from any answer that it is not
                self.refuse(ILLEGAL, f"What came is not a request: {error}.", _REFUSED_SECONDS)
                self.part(_REFUSED_SECONDS)
        except (EndedError, OSError) as error:
            _log.debug("the connection of %s broke: %s", self.transport.peer, error)
        finally:
            self._receiver.close()
            self.transport.hang_up()
            self.transport.close()

    def part(self, seconds: float) -> None:
        """Say no more, and wait until the client has read all and ends the connection."""
        self.transport.stop_sending()
        with suppress(OSError):
            self._receiver.discard(seconds)

    def _next(self) -> Request | None:
        """Return the first request of a call."""
        try:
            return self._receiver.read(None, _ROOM_SECONDS)
        except (FrameError, EndedError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever `admit` refuses with
            self._requests.refuse(self, error)
            self.part(_REFUSED_SECONDS)
            return None

    def _admit(self, head: Command, size: int) -> None:
        self.opaque = head.opaque
        self._requests.admit(self, head, size)

    # ---- for handlers --------------------------------------------------------------------------

    def read(self, idle_seconds: float, room_seconds: float) -> Request | None:
        """Return the next request of a call; None if the client has ended the connection.

        Args:
            idle_seconds: how long the client may send nothing.
            room_seconds: how long a large body may wait for room.

        Raises:
            EndedError: the client has gone within a request.
            FrameError: what it sent is not a frame.
            OverBudgetError: there was no room for it in time, or the client was too slow to fill
                the room that others wait for.
            TimeoutError: the client sent nothing for `idle_seconds`.
        """
        self._moved = time.monotonic()
        self._check()
        try:
            request = self._receiver.read(idle_seconds, room_seconds)
        except EndedError:
            self._check()
            raise
        if request is None:
            self._check()
        return request

    def ready(self) -> Request | None:
        """Return the next request of a call if it has arrived."""
        return self._receiver.ready()

    def answer(
        self,
        *parts: bytes | memoryview,
        seconds: float,
        opaque: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Answer a request.

        Args:
            parts: the body.
            seconds: how long the client may accept nothing.
            opaque: number of the request; by default, of the last one that was admitted.
            budget: the budget that the body draws on; a client that reads it slowly loses it when
                others wait for room.

        Raises:
            EndedError: the client has gone.
            TimeoutError: the client accepted nothing for `seconds`.
            OverBudgetError: others wait for the room that the body takes.
        """
        number = self.opaque if opaque is None else opaque
        self._send(_answer(number), parts, seconds, budget)

    def refuse(self, status: str, text: str, seconds: float) -> None:
        """Answer that a request is refused; see `wire.failures`."""
        refusal = _answer(self.opaque, ResponseCode.SYSTEM_ERROR, text, {STATUS_FIELD: status})
        with suppress(EndedError, TimeoutError):
            self._send(refusal, (), seconds, None)

    def _send(
        self,
        command: Command,
        parts: tuple[bytes | memoryview, ...],
        seconds: float,
        budget: Budget | None,
    ) -> None:
        head = frame_head(command, sum(map(len, parts)), _MOST_FRAME)
        begun = time.monotonic()
        try:
            self.transport.send((head, *parts), self._waiting(begun, seconds, budget))
        except OSError as error:
            raise EndedError(f"the client has gone: {error}") from None
        except (TimeoutError, OverBudgetError):
            self.hang_up()  # part of a frame may be sent: nothing can follow it
            raise
        finally:
            self.blocked_since = None
        self._moved = time.monotonic()

    def _waiting(
        self, begun: float, seconds: float, budget: Budget | None
    ) -> Callable[[int], None]:
        """Return what to do while the client takes nothing."""
        last = 0

        def check(sent: int) -> None:
            nonlocal last
            now = time.monotonic()
            if sent > last:
                last, self._moved, self.blocked_since = sent, now, None
            self.blocked_since = self.blocked_since or now
            if self.failure is not None:
                raise EndedError(str(self.failure))
            if now - max(self._moved, begun) > seconds:
                raise EndedError("the client reads nothing")
            if budget is not None and budget.is_contended and is_too_slow(now - begun, sent):
                raise OverBudgetError

        return check

    def _check(self) -> None:
        """Raise a new copy of the error that ended the call.

        The traceback of a kept error would keep alive the local variables of all who raised it.
        """
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    # ---- for any thread ------------------------------------------------------------------------

    def fail(self, failure: Exception) -> None:
        """End the call in progress, whose handler gets `failure`."""
        self.failure = self.failure or failure
        self.transport.stop_reading()

    def hang_up(self) -> None:
        """End the connection."""
        self.transport.hang_up()


def _answer(
    opaque: int,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
) -> Command:
    return Command(code, dict(ext or {}), b"", remark, opaque, 1, language="PYTHON")
