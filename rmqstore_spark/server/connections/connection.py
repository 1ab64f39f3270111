"""One connection of a client: its requests, each with a handler, and the answers."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from rmqstore_spark.errors import FrameError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import frame_head
from rmqstore_spark.remoting.tls import HANDSHAKE, ServerTls, TlsMode
from rmqstore_spark.server.budget import Budget, OverBudgetError
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.connections.receiver import (
    ClientPace,
    EndedError,
    ReceivedRequest,
    Receiver,
    new_room,
)
from rmqstore_spark.wire.protocol import DENIED, ILLEGAL, MAX_FRAME, STATUS_FIELD, fingerprint
from rmqstore_spark.wire.transport import Part, PlainTransport, TlsTransport, Transport, part_size

_log = logging.getLogger(__name__)

_BEGIN_SECONDS: Final = 10.0
_ROOM_SECONDS: Final = 10.0
_END_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 0.5


class RequestHandler(Protocol):
    """Admits and handles the requests of connections."""

    def budget_of(self, head: Command, size: int) -> Budget:
        """Return the budget that the body of an admitted request draws on."""

    def admit(self, connection: ClientConnection, head: Command, size: int) -> None:
        """Admit a request whose body, of `size` bytes, has not been received, or raise an error."""

    def handle(self, connection: ClientConnection, request: ReceivedRequest) -> bool:
        """Handle a request, and send its answers; return whether more requests may follow."""

    def refuse(self, connection: ClientConnection, error: Exception) -> None:
        """Answer a request that was not admitted, or for which there was no room."""


class ClientConnection:
    """One connection. All but `fail` and `hang_up` are for its own thread.

    Args:
        accepted: its socket.
        tls: whether it may, or must, be encrypted.
        caller: its client.
        requests: handles its requests.

    Attributes:
        transport: its socket.
        caller: its client.
        server: fingerprint of the certificate that was shown; empty without TLS.
        is_trusted: whether one of its requests was admitted.
        since: monotonic seconds when it was accepted.
        has_call: whether a request is being handled.
        has_stream: whether blocks are expected.
        blocked_since: when an answer began to wait for the client, in monotonic seconds, or None.
        failure: why the call in progress was ended from outside, or None.
        opaque: number of the request that is answered.
    """

    def __init__(
        self, accepted: socket.socket, tls: ServerTls, caller: Caller, requests: RequestHandler
    ) -> None:
        plain = PlainTransport(accepted)
        self.transport: Transport = plain
        self.caller = caller
        self.server = b""
        self.is_trusted = False
        self.since = time.monotonic()
        self.has_call = False
        self.has_stream = False
        self.blocked_since: float | None = None
        self.failure: Exception | None = None
        self.opaque = 0
        self._accepted = accepted
        self._plain = plain
        self._tls = tls
        self._requests = requests
        self._moved = self.since
        self._receiver = Receiver(self.transport, requests.budget_of, self._admit)

    @property
    def moved(self) -> float:
        """When the client last sent a request or took bytes, in monotonic seconds."""
        return max(self._moved, self._receiver.moved)

    def run(self) -> None:
        """Handle requests until the connection ends."""
        try:
            self._begin()
            while (request := self._next()) is not None:
                self.has_call = True
                try:
                    may_continue = self._requests.handle(self, request)
                finally:
                    request.release()
                    self.has_call = False
                if not may_continue:
                    self.part(_END_SECONDS if self.is_trusted else _REFUSED_SECONDS)
                    break
        except FrameError as error:
            level = logging.INFO if self.is_trusted else logging.DEBUG
            _log.log(level, "Closed the connection from %s: %s.", self.transport.peer, error)
            # A client that begins with TLS sees by any answer that there is none here.
            self.refuse(ILLEGAL, f"This is not a request: {error}.", _REFUSED_SECONDS)
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

    def _begin(self) -> None:
        """Find out whether the client talks TLS, and do the handshake then."""
        if self._tls.context is None:
            return
        if self._plain.peek(_BEGIN_SECONDS) == HANDSHAKE:
            transport = TlsTransport(self._accepted, self._tls.context)
            self.transport = transport
            self._receiver = Receiver(transport, self._requests.budget_of, self._admit)
            transport.begin(_BEGIN_SECONDS)
            self.caller.certificate = transport.identity
            self.server = fingerprint(self._tls.certificate)
        elif self._tls.mode is TlsMode.ENFORCING:
            self.refuse(
                DENIED, "The store process is reached over TLS only: rmqs://.", _REFUSED_SECONDS
            )
            raise EndedError("it is not encrypted")

    def _next(self) -> ReceivedRequest | None:
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

    def read(self, idle_seconds: float, room_seconds: float) -> ReceivedRequest | None:
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
        self._check()
        try:
            request = self._receiver.read(idle_seconds, room_seconds)
        except EndedError:
            self._check()
            raise
        except TimeoutError:
            raise
        except OSError as error:
            self._check()
            raise EndedError(f"the client has gone: {error}") from None
        if request is None:
            self._check()
        return request

    def ready(self) -> ReceivedRequest | None:
        """Return the next request of a call if it has arrived."""
        return self._receiver.ready()

    @property
    def has_more(self) -> bool:
        """Whether bytes came together with the last request."""
        return self._receiver.has_more

    @contextmanager
    def receiving_into(self, room_of: Callable[[int], U1]) -> Iterator[None]:
        """Receive the bodies of requests into what a function returns for their size."""
        self._receiver.room_of = room_of
        try:
            yield
        finally:
            self._receiver.room_of = new_room

    def answer(
        self,
        *parts: Part,
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
            EndedError: the client has gone, or accepted nothing for `seconds`.
            OverBudgetError: others wait for the room that the body takes.
        """
        number = self.opaque if opaque is None else opaque
        self._send(_answer(number), parts, seconds, budget)

    def answer_now(self, body: bytes, opaque: int) -> bytes:
        """Answer a request, on a connection without TLS, as far as the client takes it at once.

        Returns:
            What is left, for `answer_rest`.

        Raises:
            EndedError: the client has gone.
        """
        frame = frame_head(_answer(opaque), len(body), MAX_FRAME) + body
        try:
            sent = self._plain.send_now(frame)
        except OSError as error:
            raise EndedError(f"the client has gone: {error}") from None
        self._moved = time.monotonic()
        return frame[sent:]

    def answer_rest(self, rest: bytes, seconds: float) -> None:
        """Send the rest of an answer; see `answer_now` and `answer`."""
        self._send_parts((rest,), self._waiting(time.monotonic(), len(rest), seconds, None))

    def refuse(self, status: str, text: str, seconds: float) -> None:
        """Answer that a request is refused; see `wire.protocol`."""
        refusal = _answer(self.opaque, ResponseCode.SYSTEM_ERROR, text, {STATUS_FIELD: status})
        with suppress(EndedError):
            self._send(refusal, (), seconds, None)

    def _send(
        self,
        command: Command,
        parts: tuple[Part, ...],
        seconds: float,
        budget: Budget | None,
    ) -> None:
        size = sum(map(part_size, parts))
        head = frame_head(command, size, MAX_FRAME)
        self._send_parts((head, *parts), self._waiting(time.monotonic(), size, seconds, budget))

    def _send_parts(self, parts: tuple[Part, ...], check: Callable[[int], None]) -> None:
        try:
            self.transport.send(parts, check)
        except OSError as error:
            raise EndedError(f"the client has gone: {error}") from None
        except (EndedError, OverBudgetError):
            self.hang_up()  # part of a frame may be sent: nothing can follow it
            raise
        finally:
            self.blocked_since = None
        self._moved = time.monotonic()

    def _waiting(
        self, begun: float, size: int, seconds: float, budget: Budget | None
    ) -> Callable[[int], None]:
        """Return what to do while the client takes nothing."""
        last, looked, pace = 0, begun, ClientPace(size)

        def check(sent: int) -> None:
            nonlocal last, looked
            now = time.monotonic()
            is_slow, looked = pace.is_too_slow(now - looked, sent), now
            if sent > last:
                last, self._moved, self.blocked_since = sent, now, None
            self.blocked_since = self.blocked_since or now
            if self.failure is not None:
                raise EndedError(str(self.failure))
            if now - max(self._moved, begun) > seconds:
                raise EndedError("the client reads nothing")
            if is_slow and budget is not None and budget.is_contended:
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
