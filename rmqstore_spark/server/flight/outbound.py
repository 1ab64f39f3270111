"""Sends frames to a client from any thread, and messages as the client's windows allow."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from rmqstore_spark.server.budget import Budget
from rmqstore_spark.server.flight.frames import (
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    MOST_WINDOW,
    ErrorCode,
    Flag,
    Frame,
    ProtocolError,
    data_head,
    frame,
    header_block,
    window_update,
)
from rmqstore_spark.server.flight.status import EndedError
from rmqstore_spark.server.flight.transport import Transport

__all__ = ["Outbound"]

_JOINED: Final = 32 << 10
_LOOK_SECONDS: Final = 0.5


class Sender(Protocol):
    """A call that sends messages, as flow control sees it.

    Attributes:
        number: HTTP/2's number of the stream.
        send_window: bytes that the client accepts on the stream.
        blocked_since: when it began to wait for the client's window, in monotonic seconds, or None.
        moved: when the client last accepted bytes, in monotonic seconds.
    """

    number: int
    send_window: int
    blocked_since: float | None
    moved: float

    @property
    def failure(self) -> Exception | None:
        """The reason why nothing more can be sent."""

    def check_blocked(self, seconds: float, sent: int, budget: Budget | None) -> None:
        """Raise an error if the call has waited for the client too long."""


class Outbound:
    """The sending half of a connection. Thread-safe.

    Args:
        transport: the transport of the connection.

    Attributes:
        initial_window: bytes that may be sent at first on a new stream.
        largest_frame: bytes of a frame's payload that the client accepts.
        sent: bytes of messages that were sent.
    """

    def __init__(self, transport: Transport) -> None:
        self.initial_window = DEFAULT_WINDOW
        self.largest_frame = DEFAULT_FRAME
        self.sent = 0
        self._transport = transport
        self._writing = threading.Lock()
        self._windows = threading.Condition()
        self._window = DEFAULT_WINDOW
        self._is_closed = False

    def close(self) -> None:
        """Refuse to send anything more."""
        self._is_closed = True

    def end(self) -> None:
        """End the connection, once no thread writes to it."""
        self._transport.hang_up()
        with self._writing:
            self._transport.close()

    def write_now(self, data: bytes) -> None:
        """Send a frame if this needs no waiting."""
        if self._writing.acquire(blocking=False):
            try:
                self._transport.send_now(data)
            finally:
                self._writing.release()

    # ---- the client's windows ------------------------------------------------------------------

    def set_initial_window(self, size: int, streams: Iterable[Sender]) -> None:
        """Change the window of new streams and of the given ones, as the client demands."""
        with self._windows:
            change, self.initial_window = size - self.initial_window, size
            for stream in streams:
                stream.send_window += change
            self._windows.notify_all()

    def widen(self, stream: Sender | None, count: int) -> None:
        """Widen the window of a stream, or that of the connection (None).

        Raises:
            ProtocolError: the window would exceed HTTP/2's limit.
        """
        with self._windows:
            if stream is None:
                self._window += count
            else:
                stream.send_window += count
            widest = self._window if stream is None else stream.send_window
            self._windows.notify_all()
        if widest > MOST_WINDOW:
            raise ProtocolError("a window too wide", ErrorCode.FLOW_CONTROL_ERROR)

    # ---- sending -------------------------------------------------------------------------------

    def grant(self, number: int, count: int) -> None:
        """Let the client send `count` more bytes on a stream."""
        with suppress(OSError):  # the connection has ended, or the error ends it
            self.write([window_update(number, count)])

    def wake(self) -> None:
        """Wake the threads that wait for a window, so that they look for failures."""
        with self._windows:
            self._windows.notify_all()

    def send_data(
        self,
        stream: Sender,
        parts: Sequence[bytes | memoryview],
        begins: bool,
        seconds: float,
        budget: Budget | None,
    ) -> None:
        """Send a message as the client's window allows, after the headers if it is the first.

        Raises:
            EndedError: the client has gone.
            TimeoutError: its window was closed for `seconds`.
            OverBudgetError: see `Sender.check_blocked`.
        """
        begin, sent = time.monotonic(), 0
        before = [self._response_headers(stream.number)] if begins else []
        left = [memoryview(part) for part in parts]
        if sum(map(len, left)) <= _JOINED:
            left = [memoryview(b"".join(left))]
        while left:
            size = sum(map(len, left))
            if before and min(self._window, stream.send_window) <= 0:
                self._write_or_end(before)
                before = []
            count = self._reserve(stream, size, seconds, begin, sent, budget)
            now, left = _split(left, count)
            self._write_or_end([*before, data_head(count, stream.number), *now])
            before, sent = [], sent + count

    def send_trailers(self, number: int, trailers: Sequence[tuple[str, str]], is_all: bool) -> None:
        """End a call. If nothing was answered, the trailers are the whole answer."""
        headers = [("content-type", "application/grpc"), *trailers] if is_all else trailers
        block = header_block(headers, is_response=is_all)
        flags = Flag.END_HEADERS | Flag.END_STREAM
        with suppress(OSError):
            self.write([frame(Frame.HEADERS, flags, number, block)])

    def reset(self, number: int, code: ErrorCode) -> None:
        """Tell the client that no more data of a call is read."""
        with suppress(OSError):
            self.write([frame(Frame.RST_STREAM, 0, number, struct.pack(">I", code))])

    def _response_headers(self, number: int) -> bytes:
        block = header_block([("content-type", "application/grpc")], is_response=True)
        return frame(Frame.HEADERS, Flag.END_HEADERS, number, block)

    def _reserve(
        self,
        stream: Sender,
        size: int,
        seconds: float,
        begin: float,
        sent: int,
        budget: Budget | None,
    ) -> int:
        """Wait for the client's window; return how many bytes may be sent now."""
        since = time.monotonic()
        with self._windows:
            while stream.failure is None and min(self._window, stream.send_window) <= 0:
                stream.blocked_since = since
                self._windows.wait(min(_LOOK_SECONDS, seconds))
                if time.monotonic() - since >= seconds:
                    raise TimeoutError
                stream.check_blocked(time.monotonic() - begin, sent, budget)
            stream.blocked_since = None
            stream.check_blocked(time.monotonic() - begin, sent, budget)
            count = min(size, self._window, stream.send_window, self.largest_frame)
            self.sent += count
            self._window -= count
            stream.send_window -= count
            stream.moved = time.monotonic()
            return count

    def _write_or_end(self, parts: Sequence[bytes | memoryview]) -> None:
        try:
            self.write(parts)
        except OSError as error:
            raise EndedError(f"the client reads nothing: {error}") from None

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send frames.

        Raises:
            OSError: the connection broke; it is ended.
        """
        with self._writing:
            if self._is_closed:
                raise OSError("the connection is closed")
            try:
                self._transport.send(parts)
            except OSError:
                self._transport.hang_up()  # part of a frame may be sent: nothing can follow it
                raise


def _split(parts: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """Split buffers into their first `count` bytes and the rest."""
    now: list[memoryview] = []
    for at, part in enumerate(parts):
        if len(part) > count:
            return [*now, part[:count]] if count else now, [part[count:], *parts[at + 1 :]]
        now.append(part)
        count -= len(part)
    return now, []
