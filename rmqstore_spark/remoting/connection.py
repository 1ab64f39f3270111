"""A connection, the same for both ends: each may ask, and each answers.

Everything here runs in the thread of one event loop. Requests arrive in groups: all that one read
of the socket completed. Answers leave in groups too, in one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol, cast

from rmqstore_spark.errors import FrameError, ServiceError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codes import ResponseCode
from rmqstore_spark.remoting.command import Command
from rmqstore_spark.remoting.frames import FrameReader, frame_parts
from rmqstore_spark.remoting.limits import Limits

__all__ = ["Connection", "Registry", "Service", "address_text"]

_log = logging.getLogger(__name__)

_HIGH_WATER: Final = 1 << 20
"""Bytes that wait to be written; with more, no request is handled until the other end reads."""


class Service(Protocol):
    """Handles the requests of connections."""

    def opened(self, connection: Connection) -> None:
        """Take note of a new connection."""

    def requests(self, connection: Connection, commands: Sequence[Command]) -> None:
        """Handle requests that arrived together.

        Answer each that is not one-way with `connection.send`, now or later.
        """

    def closed(self, connection: Connection) -> None:
        """Take note that a connection has ended. Nothing can be sent on it."""


class Registry(Protocol):
    """Knows all connections of a server, and what they hold."""

    def admit(self, connection: Connection) -> bool:
        """Add a new connection; return False if there are too many."""

    def note(self, more: int) -> None:
        """Take note that connections hold more, or fewer, bytes of requests."""

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has ended."""


class Connection(asyncio.Protocol):
    """A connection.

    Args:
        service: handles the other end's requests.
        limits: its bounds.
        registry: of the server that it belongs to; None for a client's.

    Attributes:
        peer: address of the other end, as text.
    """

    def __init__(self, service: Service, limits: Limits, registry: Registry | None = None) -> None:
        self.peer = ""
        self._service = service
        self._limits = limits
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(limits.frame)
        self._waiting: deque[Command] = deque()
        self._waiting_bytes = 0
        self._held = 0
        self._out: list[bytes] = []
        self._is_flush_due = False
        self._is_handling = False
        self._unanswered = 0
        self._is_read = True
        self._is_broken = False
        self._used_at = self._loop.time()
        self._frame_since = 0.0
        self._stuck_since = 0.0
        self._opaque = 0
        self._asked: dict[int, asyncio.Future[Command]] = {}

    # ---- for the service

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, command: Command) -> None:
        """Send an answer, or a request that nobody answers. Does nothing on a closed connection.

        Answers are written together when the group of requests is handled.

        Raises:
            FrameError: a request does not fit a frame. For an answer that does not fit, the other
                end gets SYSTEM_ERROR.
        """
        if command.is_response:
            self._unanswered -= 1
        if not self.is_open:
            return
        try:
            parts = frame_parts(command)
        except FrameError as error:
            if not command.is_response:
                raise
            _log.error("An answer to %s was not sent: %s.", self.peer, error)
            remark = f"the answer is too large: {error}"
            parts = frame_parts(
                Command(
                    ResponseCode.SYSTEM_ERROR, remark=remark, opaque=command.opaque,
                    flag=command.flag, form=command.form,
                )
            )  # fmt: skip
        self._out += parts if parts[1] else parts[:1]
        if not self._is_handling and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_and_go_on)

    async def request(self, command: Command, seconds: float) -> Command:
        """Send a request, and wait for its answer, whatever its code.

        Args:
            command: the request; it gets its `opaque` here.
            seconds: how long to wait.

        Raises:
            ServiceError: the connection is closed, has too many requests, or no answer came.
            FrameError: the request does not fit a frame.
        """
        if not self.is_open:
            raise ServiceError(f"The connection to {self.peer} is closed.")
        if len(self._asked) >= self._limits.in_flight:
            raise ServiceError(
                f"{len(self._asked)} requests to {self.peer} wait for an answer, as many as may."
            )
        self._number(command)
        answer: asyncio.Future[Command] = self._loop.create_future()
        self.send(command)
        self._asked[command.opaque] = answer
        try:
            return await asyncio.wait_for(answer, seconds)
        except asyncio.TimeoutError:
            raise ServiceError(
                f"{self.peer} did not answer request {command.code} within {seconds:g} s."
            ) from None
        finally:
            self._asked.pop(command.opaque, None)

    def one_way(self, command: Command) -> None:
        """Send a request that nobody answers.

        Raises:
            FrameError: it does not fit a frame.
        """
        self._number(command)
        self.send(command.one_way())

    def close(self) -> None:
        """Close the connection when what was sent is written, or has waited for too long."""
        if self._transport is not None:
            self._flush()
            self._stuck_since = self._stuck_since or self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # ---- for the server

    @property
    def holds(self) -> int:
        """Bytes of requests and answers that are in memory."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._held + buffered

    def check_time(self, now: float) -> None:
        """End the connection if it has been idle or slow for too long.

        Args:
            now: the event loop's time.
        """
        limits = self._limits
        if self._stuck_since and now - self._stuck_since > limits.write_seconds:
            _log.warning(
                "%s does not read its answers; its connection was ended.", escaped(self.peer)
            )
            self.abort()
        elif self._is_read and self._reader.held and now - self._frame_since > limits.frame_seconds:
            _log.warning(
                "%s has not sent the rest of a request for %g s; its connection was ended.",
                escaped(self.peer), limits.frame_seconds,
            )  # fmt: skip
            self.abort()
        elif now - self._used_at > limits.idle_seconds:
            _log.info("The connection of %s was idle; it was closed.", escaped(self.peer))
            self.close()

    # ---- for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.peer = address_text(transport.get_extra_info("peername"))
        if self._registry is not None and not self._registry.admit(self):
            self._is_broken = True
            self.abort()
            return
        self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            return
        self._used_at = self._loop.time()
        was_part = bool(self._reader.held)
        count = 0
        try:
            for command in self._reader.feed(data):
                count += 1
                self._arrived(command)
        except FrameError as error:
            self._is_broken = True
            _log.warning(
                "%s sent what is not RocketMQ's protocol: %s. Its connection was closed.",
                escaped(self.peer), escaped(str(error)),
            )  # fmt: skip
        if self._reader.held and (count or not was_part):
            self._frame_since = self._used_at
        self._go_on()
        if self._is_broken:
            self.close()

    def eof_received(self) -> None:
        """Close; the other end has gone."""

    def pause_writing(self) -> None:
        self._stuck_since = self._loop.time()

    def resume_writing(self) -> None:
        if not self.is_open:
            return
        self._stuck_since = 0.0
        self._used_at = self._loop.time()
        self._go_on()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._out.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ServiceError(f"The connection to {self.peer} was closed."))
        if self._registry is not None:
            self._registry.note(-self._held)
            self._registry.remove(self)
        self._held = 0
        self._service.closed(self)

    # ---- its own

    def _arrived(self, command: Command) -> None:
        if not command.is_response:
            self._waiting.append(command)
            self._waiting_bytes += len(command.body)
            return
        answer = self._asked.pop(command.opaque, None)
        if answer is not None and not answer.done():
            answer.set_result(command)

    def _go_on(self) -> None:
        """Handle requests that have arrived, as far as their answers can be written."""
        while self._waiting and not self._is_full and self.is_open:
            group = list(islice(self._waiting, self._limits.group))
            for command in group:
                self._waiting.popleft()
                self._waiting_bytes -= len(command.body)
                self._unanswered += not command.is_one_way
            self._is_handling = True
            try:
                self._service.requests(self, group)
            finally:
                self._is_handling = False
            self._flush()
        self._read_on()
        self._tell_held()

    @property
    def _is_full(self) -> bool:
        return bool(self._stuck_since) or self._unanswered >= self._limits.in_flight

    def _read_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        wanted = not self._waiting and not self._is_full
        if wanted and not self._is_read:
            self._frame_since = self._loop.time()
            self._transport.resume_reading()
        elif not wanted and self._is_read:
            self._transport.pause_reading()
        self._is_read = wanted

    def _tell_held(self) -> None:
        held = self._reader.held + self._waiting_bytes
        more, self._held = held - self._held, held
        if more and self._registry is not None:
            self._registry.note(more)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._out and self._transport is not None:
            self._used_at = self._loop.time()
            out, self._out = self._out, []
            self._transport.writelines(out)

    def _flush_and_go_on(self) -> None:
        if self._transport is not None:
            self._flush()
            self._go_on()

    def _number(self, command: Command) -> None:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque


def address_text(address: object) -> str:
    """Return a socket's address as `host:port`."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return f"{host}:{address[1]}"
    return str(address or "an unknown address")
