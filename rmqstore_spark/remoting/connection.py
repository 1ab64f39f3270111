"""A connection, the same for both ends: each may ask, and each answers.

Everything here runs in the thread of one event loop; only `Request` may be used in any. What
arrived in a turn of the loop is handled as one group (`turns`); its answers leave in one write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final, Protocol, cast

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import FrameError, ServiceError
from rmqstore_spark.remoting.addresses import address_text
from rmqstore_spark.remoting.answers import LARGE, Answers, Outbox
from rmqstore_spark.remoting.backlog import Backlog, Limits, PendingCalls, Told
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import ONE_WAY, RESPONSE, Command
from rmqstore_spark.remoting.codec.frames import frame_head
from rmqstore_spark.remoting.codec.plain import PlainSend
from rmqstore_spark.remoting.inbox import FrameInbox, Scratch
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.remoting.room import SMALL, FrameRoom
from rmqstore_spark.remoting.turns import Turns

_REQUEST_BYTES: Final = 1024
"""About what the objects of a request need, beside the bytes of its frame."""
_USUAL_FIELDS: Final = 24
_FIELD_BYTES: Final = 128
_PROMISED: Final = 16 << 10
"""Bytes of an answer that count before the event loop has it."""


class RequestService(Protocol):
    """Handles the requests of connections."""

    def opened(self, connection: RemotingConnection) -> None:
        """Take note of a new connection."""

    def requests(self, requests: Sequence[Request]) -> None:
        """Handle requests that arrived together, on any connections. Finish each, now or later."""

    def closed(self, connection: RemotingConnection) -> None:
        """Take note that a connection has ended. Nothing can be sent on it."""


class Registry(Protocol):
    """Knows all connections of a server, and what they hold."""

    def admit(self, connection: RemotingConnection) -> bool:
        """Add a new connection; return False if there are too many."""

    def remove(self, connection: RemotingConnection) -> None:
        """Remove a connection that has ended."""

    @property
    def log(self) -> PeerLog:
        """For lines about the other ends."""


class SharedBounds:
    """What connections of an event loop share: how much they may hold together.

    Args:
        limits: the bounds.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.room = FrameRoom(limits)
        self.answers = Answers(limits.held // 2)
        self.scratch = Scratch()


class Request:
    """A request that has arrived. Its bytes are held until it is finished, so finish each.

    It may be finished from any thread; the answer is sent from that of the event loop, together
    with those that come meanwhile.

    Args:
        connection: on which it came.
        command: the request itself.
        turns: of the connection's event loop.
        arrived: when it came, by `time.monotonic`.

    Attributes:
        arrived: as given.
        held: bytes that it holds.
        is_finished: whether its end has come to the event loop.
    """

    __slots__ = ("_turns", "arrived", "command", "connection", "held", "is_finished")

    def __init__(
        self,
        connection: RemotingConnection,
        command: Command,
        turns: Turns[Request],
        arrived: float,
    ) -> None:
        self.connection = connection
        self.command = command
        self.arrived = arrived
        self.held = command.size + _REQUEST_BYTES
        if type(command) is not PlainSend:
            self.held += max(command.field_count - _USUAL_FIELDS, 0) * _FIELD_BYTES
        self.is_finished = False
        self._turns = turns

    def reply(self, answer: Command | bytes) -> None:
        """Finish it with an answer. One that is one-way, or whose client has gone, gets none.

        Does nothing if it is finished.

        Args:
            answer: the answer, or its frame.
        """
        self._finish(None if self.command.flag & ONE_WAY else answer)

    def drop(self) -> None:
        """Finish it without an answer: it is one-way, or nobody needs an answer any more.

        Does nothing if it is finished.
        """
        self._finish(None)

    def put_back(self) -> None:
        """Return it to its connection, since that has no room for a large answer now.

        It is handed out again when there is. Does nothing if it is finished.
        """
        self._turns.in_loop(lambda: self.connection.put_back(self))

    def _finish(self, answer: Command | bytes | None) -> None:
        if self._turns.is_here:
            self.connection.finished(self, answer)
            return
        size = len(answer) if isinstance(answer, bytes) else _body_size(answer)
        size = size if size >= _PROMISED else 0
        if size:
            self.connection.out.promise(size)

        def finish() -> None:
            if size:
                self.connection.out.promise(-size)
            self.connection.finished(self, answer)

        self._turns.in_loop(finish)


def reply_all(requests: Sequence[Request], answers: Sequence[bytes]) -> None:
    """Finish requests with the frames of their answers, as `Request.reply` does with each.

    Args:
        requests: n, on any connections with the same turns.
        answers: n.
    """
    if not requests[0]._turns.is_here:
        for request, answer in zip(requests, answers, strict=True):
            request.reply(answer)
        return
    connection = None
    finished: list[Request] = []
    frames = b""
    for request, answer in zip(requests, answers, strict=True):
        if request.is_finished:
            continue
        if request.connection is not connection:  # those of a connection are beside each other
            if connection is not None:
                connection.finished_all(finished, frames)
            connection, finished, frames = request.connection, [], b""
        finished.append(request)
        if not request.command.flag & ONE_WAY:
            frames += answer
    if connection is not None:
        connection.finished_all(finished, frames)


def _body_size(answer: Command | bytes | None) -> int:
    return len(answer.body) if isinstance(answer, Command) else 0


class RemotingConnection(asyncio.BufferedProtocol):
    """A connection.

    Args:
        service: handles the other end's requests.
        turns: of this event loop, which hand requests to the service.
        bounds: what it may hold, alone and with others.
        registry: of the server that it belongs to; None for a client's.

    Attributes:
        peer: address of the other end, as text.
        has_asked: whether it has had a request.
        out: what was sent.
    """

    def __init__(
        self,
        service: RequestService,
        turns: Turns[Request],
        bounds: SharedBounds,
        registry: Registry | None = None,
    ) -> None:
        limits = bounds.limits
        self.peer = ""
        self.has_asked = False
        self._service = service
        self._turns = turns
        self._limits = limits
        self._room = bounds.room
        self._answers = bounds.answers
        self._registry = registry
        self._log = registry.log if registry is not None else PeerLog(logging.getLogger(__name__))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = FrameInbox(self, bounds.room, bounds.scratch, limits.frame)
        self._backlog: Backlog[Request] = Backlog(limits)
        self.out = Outbox(self, bounds.answers)
        self._is_read = True
        self._is_broken = False
        self._is_encrypted = False
        self._used_at = self._loop.time()
        self._frame_since = 0.0
        self._calls = PendingCalls()
        self._ended = self._loop.create_future()

    # ---- for the service

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """Whether more requests should be sent: the other end reads what was sent."""
        return self.out.has_room

    @property
    def has_answer_room(self) -> bool:
        """Whether a large answer should be made: this end and all others read theirs.

        From any thread.
        """
        return self.out.reads_answers and self._answers.has_room

    def send(self, command: Command) -> None:
        """Send a command. Does nothing on a closed connection.

        What is sent in a turn of the event loop is written together.

        Raises:
            FrameError: a request does not fit a frame. For an answer that does not fit, the other
                end gets SYSTEM_ERROR.
        """
        if self._transport is None or self._transport.is_closing():
            return
        body = command.body
        try:
            head = frame_head(command, len(body))
        except FrameError as error:
            if not command.is_response:
                raise
            self._warn("An answer to %s was not sent: %s.", error)
            remark, body = f"the answer is too large: {error}", b""
            instead = Command(
                ResponseCode.SYSTEM_ERROR, remark=remark, opaque=command.opaque,
                flag=command.flag, form=command.form,
            )  # fmt: skip
            head = frame_head(instead, 0)
        self._send_frame(head, body)

    def _send_frame(self, head: bytes, body: bytes) -> None:
        if self.is_open:
            self.out.add(head, body)
            self._turns.unwritten(self)

    async def request(self, command: Command, seconds: float) -> Command:
        """Send a request, and wait for its answer, whatever its code.

        Args:
            command: the request; it gets its `opaque` here.
            seconds: how long to wait.

        Raises:
            ServiceError: the connection is closed, has too many requests, or no answer came.
            FrameError: the request does not fit a frame.
        """
        self._number(command)
        self.send(command)
        try:
            return await self._calls.answer_of(command, self.peer, seconds)
        finally:
            self._calls.forget(command)

    def call(self, command: Command, seconds: float, told: Told) -> None:
        """Send a request, and have its answer told; see `request`.

        Neither waits for the end of a turn of the event loop: the request is written now, and the
        function is called as soon as the answer has come.

        Args:
            command: the request; it gets its `opaque` here.
            seconds: how long an answer may take.
            told: gets the answer, or a ServiceError if none comes in time, or before the connection
                is closed.
        """
        self._number(command)
        self.out.add(frame_head(command, len(command.body)), command.body)
        self.flush()
        self._calls.tell(command, self.peer, seconds, told)

    def _number(self, command: Command) -> None:
        """Give a request its number, if it may be sent."""
        if not self.is_open:
            raise ServiceError(f"The connection to {self.peer} is closed.")
        if len(self._calls) >= self._limits.in_flight:
            raise ServiceError(
                f"{len(self._calls)} requests to {self.peer} wait for an answer, as many as may."
            )
        self._calls.number(command)

    def one_way(self, command: Command) -> None:
        """Send a request that nobody answers.

        Raises:
            FrameError: it does not fit a frame.
        """
        self._calls.number(command)
        self.send(command.one_way())

    def close(self) -> None:
        """Close the connection when what was sent is written, or has waited for too long."""
        if self._transport is not None:
            self.flush()
            self.out.stuck_since = self.out.stuck_since or self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    async def ended(self, seconds: float) -> None:
        """Wait until a connection that is being closed has ended.

        Args:
            seconds: how long the other end may take; then it is ended.
        """
        await asyncio.wait((self._ended,), timeout=seconds)
        if not self._ended.done():
            self.abort()
            await asyncio.shield(self._ended)

    # ---- for its requests

    def finished(self, request: Request, answer: Command | bytes | None) -> None:
        """Take note that a request was handled. Does nothing if that was told before.

        Args:
            request: one that came on this connection, even if that is closed by now.
            answer: to send, also as a frame; None for no answer.
        """
        if request.is_finished:
            return
        is_large = isinstance(answer, Command) and len(answer.body) > LARGE
        if is_large and not self._answers.has_room and self.is_open:
            self.put_back(request)  # it is made again when others have read theirs
            return
        request.is_finished = True
        self._backlog.finished_all(1, request.held)
        self._room.give_back(request.command.size, request.held)
        if isinstance(answer, bytes):
            self._send_frame(answer, b"")
        elif answer is not None:
            self.send(answer)
        self._proceed_if_due()

    def finished_all(self, requests: Sequence[Request], frames: bytes) -> None:
        """Take note that requests were handled, none of which is finished; see `reply_all`.

        Args:
            requests: those that came on this connection.
            frames: of their answers.
        """
        held = large = 0
        for request in requests:
            request.is_finished = True
            held += request.held
            if request.command.size > SMALL:
                large += request.held
                self._room.give_back(request.command.size, request.held)
        self._backlog.finished_all(len(requests), held)
        if held > large:
            self._room.give_back(SMALL, held - large)
        if frames and self._transport is not None and not self._transport.is_closing():
            self.out.add(frames, b"")
            self._turns.unwritten(self)
        self._proceed_if_due()

    def put_back(self, request: Request) -> None:
        """Take a request back that would have got a large answer; see `Request.put_back`."""
        if request.is_finished:
            return
        self._backlog.finished(request)
        if self.is_open:
            self._backlog.postpone(request)
        else:
            self._drop(request)
        self._proceed()
        self.read_on()

    def put_back_first(self, requests: Sequence[Request]) -> None:
        """Take requests back in this turn, as if they had not been handed out."""
        for request in reversed(requests):
            self._backlog.finished(request)
            self._backlog.add_first(request)
        self._proceed()
        self.read_on()

    # ---- for turns

    @property
    def is_ready(self) -> bool:
        """Whether it has a request that may be handled now."""
        backlog = self._backlog
        if not (backlog.waiting or backlog.postponed):
            return False
        out = self.out
        if out.stuck_since or not out.has_room:
            return False
        if backlog.waiting and not backlog.is_full:
            return True
        return bool(backlog.postponed) and self._answers.has_room and out.reads_answers

    @property
    def next_size(self) -> int:
        """Bytes of the request that comes next."""
        waiting = self._backlog.waiting
        return waiting[0].held if waiting else 0

    def take(self, most: int) -> list[Request]:
        """Return requests that may be handled now, and count them as being handled."""
        group: list[Request] = []
        backlog = self._backlog
        if self.is_ready:
            if not backlog.postponed:
                group = backlog.take(most)
            else:
                if self._answers.has_room:
                    group = backlog.take_postponed(most)
                else:
                    self._answers.wait_for_room(self.out)
                group += backlog.take(most - len(group))
        if backlog.is_full or not self._is_read:
            self.read_on()
        return group

    def flush(self) -> None:
        """Write what was sent."""
        if self.out.flush():
            self._used_at = time.monotonic()
            if (self._backlog.waiting or self._backlog.postponed) and self.is_ready:
                self._turns.ready(self)  # it had no room for one more answer in this turn

    # ---- for what all connections share

    def serve_on(self) -> None:
        """Look again whether requests may be handled."""
        self._proceed()

    def stop_serving(self) -> None:
        """End: the other end does not read its answers, and others wait."""
        self.out.drop()
        self._warn(
            "%s does not read its answers, and all connections together have too many that are "
            "not read; its connection was ended."
        )
        self.abort()

    def room_granted(self, size: int) -> int:
        """Receive the frame that waited for room; return how many of its bytes were here."""
        early = self._inbox.granted(size)
        self._frame_since = self._loop.time()
        self.read_on()
        return early

    def lose_room(self) -> None:
        """End: the frame that was given room does not arrive, and others wait."""
        self._warn(
            "%s does not send the rest of a request, and others wait for its room; its connection "
            "was ended."
        )
        self._is_broken = True
        self._inbox.close()
        self.abort()

    # ---- for the server

    @property
    def holds(self) -> int:
        """Bytes in memory: parts of frames, requests until they are finished, answers."""
        return self._inbox.held + self._backlog.held + self.out.held

    def check_time(self, now: float) -> None:
        """End the connection if it has been idle or slow for too long.

        Args:
            now: the event loop's time.
        """
        limits = self._limits
        stuck_since = self.out.stuck_since
        if stuck_since and now - stuck_since > limits.write_seconds:
            self._warn("%s does not read its answers; its connection was ended.")
            self.abort()
        elif self._is_read and self._inbox.held and now - self._frame_since > limits.frame_seconds:
            self._warn(
                "%s has not sent the rest of a request for %g s; its connection was ended.",
                limits.frame_seconds,
            )
            self.abort()
        elif self._is_broken and now - self._used_at > limits.write_seconds:
            self.close()  # its last requests take too long
        elif now - self._used_at > limits.idle_seconds:
            self._log.info(
                self.peer, "The connection of %s was idle; it was closed.", escaped(self.peer)
            )
            self.close()

    # ---- for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.out.open(self._transport)
        address = transport.get_extra_info("peername")
        self.peer = address_text(address)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self._room.opened()
        is_gone = address is None  # it was reset before it was accepted
        if is_gone or (self._registry is not None and not self._registry.admit(self)):
            self._is_broken = True
            self.abort()
            return
        self._service.opened(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_broken:
            return
        now = self._used_at = time.monotonic()
        inbox, room, backlog, turns = self._inbox, self._room, self._backlog, self._turns
        was_part = inbox.held
        commands, error = inbox.received(nbytes)
        small = 0
        for command in commands:
            size = command.size
            if command.flag & RESPONSE:
                if size > SMALL:
                    room.give_back(size, size)
                self._calls.arrived(command)
            else:
                request = Request(self, command, turns, now)
                if size <= SMALL:
                    small += request.held
                else:
                    room.hold(size, request.held - size)
                backlog.add(request)
                self.has_asked = True
        if small:
            room.hold(SMALL, small)
        if inbox.held and (commands or not was_part):
            self._frame_since = now
        if error is not None:
            self._is_broken = True
            self._warn(
                "%s sent what is not RocketMQ's protocol: %s. Its connection was closed.",
                escaped(str(error)),
            )
        self._proceed()
        if inbox.wanted or room.is_crowded or not (self._is_read and backlog.may_grow):
            self.read_on()

    def eof_received(self) -> None:
        """Handle what came before the other end went; then asyncio closes the connection."""
        self._handle_the_rest()
        self.flush()

    def pause_writing(self) -> None:
        self.out.pause()
        self.read_on()

    def resume_writing(self) -> None:
        if not self.is_open:
            return
        self.out.resume()
        self._used_at = self._loop.time()
        self._proceed()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._ended.set_result(None)
        self._inbox.close()
        for request in self._backlog.forget_waiting():
            self._drop(request)
        self.out.close()
        self._turns.forget(self)
        self._room.closed(self)
        if self._registry is not None:
            self._registry.remove(self)
        self._service.closed(self)
        may_want_tls = self._registry is None and not self._is_encrypted
        self._calls.fail(self.peer, may_want_tls=may_want_tls)

    # ---- its own

    def _proceed_if_due(self) -> None:
        """Do what `_proceed` does, if there is something to proceed with."""
        backlog = self._backlog
        if backlog.waiting or backlog.postponed or self._is_broken or not self._is_read:
            self._proceed()

    def _proceed(self) -> None:
        """Have requests handled that may be, and read on or stop."""
        backlog = self._backlog
        if backlog.waiting or backlog.postponed:
            if self.is_ready:
                self._turns.ready(self)
            elif backlog.postponed and not self._answers.has_room:
                self._answers.wait_for_room(self.out)
        if not self._is_read:
            self.read_on()
        if self._is_broken and backlog.is_empty:
            self.close()

    def _handle_the_rest(self) -> None:
        while self.is_ready:
            self._turns.take()

    def _drop(self, request: Request) -> None:
        request.is_finished = True
        self._room.give_back(request.command.size, request.held)

    def read_on(self) -> None:
        """Read on, or stop, as there is room."""
        if self._transport is None or self._transport.is_closing():
            return
        wanted = (
            self._backlog.may_grow
            and not self.out.stuck_since
            and not self._is_broken
            and not self._inbox.wanted
            and self._room.may_read(self, self._backlog.held)
        )
        if wanted and not self._is_read:
            self._frame_since = self._loop.time()
            self._transport.resume_reading()
        elif not wanted and self._is_read:
            self._transport.pause_reading()
        self._is_read = wanted

    def _warn(self, text: str, *values: object) -> None:
        self._log.warning(self.peer, text, escaped(self.peer), *values)
