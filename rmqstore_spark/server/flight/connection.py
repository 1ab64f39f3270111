"""One client's HTTP/2 connection. Its thread reads frames, and passes calls to the service.

Everything that is sent, from any thread, goes through `outbound`.

Memory: 32 KiB for reading, and for each call what `stream` describes. Until a call is admitted, the
client may send 64 KiB in all.
"""

from __future__ import annotations

import logging
import struct
import time
from contextlib import suppress
from typing import Final, Protocol

from rmqstore_spark.server.budget import Room
from rmqstore_spark.server.flight.allowance import FrameAllowance
from rmqstore_spark.server.flight.frames import (
    CLIENT_PREFACE,
    DEFAULT_WINDOW,
    HEAD,
    MOST_HEADER_BYTES,
    MOST_WINDOW,
    ErrorCode,
    Flag,
    Frame,
    ProtocolError,
    Setting,
    frame,
    new_header_decoder,
    read_headers,
    read_settings,
    settings_payload,
    unpadded,
    window_update,
)
from rmqstore_spark.server.flight.inbox import INITIAL_WINDOW
from rmqstore_spark.server.flight.outbound import Outbound
from rmqstore_spark.server.flight.status import EndedError
from rmqstore_spark.server.flight.stream import Stream
from rmqstore_spark.server.flight.transport import Transport

__all__ = ["CallService", "ClientConnection"]

_log = logging.getLogger(__name__)

_STAGED: Final = 32 << 10
_TRUSTED_WINDOW: Final = 16 << 20
_LARGEST_FRAME: Final = 1 << 20
_MOST_STREAMS: Final = 4096
_MOST_CONTINUATIONS: Final = 8
_MOST_SETTINGS: Final = 6 * 64
_PING_BYTES: Final = 8


class CallService(Protocol):
    """Handles the calls of connections.

    Attributes:
        room: the room for messages of admitted calls.
        most_message: maximum bytes of a message.
    """

    room: Room
    most_message: int

    def begin(self, stream: Stream) -> None:
        """Admit a call, or refuse it. Runs in the connection's thread, so it must not wait."""


class ClientConnection:
    """One connection, from its handshake to its end.

    Args:
        transport: its socket.
        service: takes the calls.

    Attributes:
        is_trusted: whether the service has admitted one of its calls.
        since: monotonic seconds when it was accepted.
    """

    def __init__(self, transport: Transport, service: CallService) -> None:
        self.transport = transport
        self.out = Outbound(transport)
        self.is_trusted = False
        self.since = time.monotonic()
        self._service = service
        self._staged = memoryview(bytearray(_STAGED))
        self._begin = self._end = 0
        self._decoder = new_header_decoder()
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._room = DEFAULT_WINDOW
        self._allowance = FrameAllowance()

    @property
    def has_calls(self) -> bool:
        """Whether calls are in progress."""
        return bool(self._streams)

    def hang_up(self) -> None:
        """End the connection."""
        self.transport.hang_up()

    def say_goodbye(self) -> None:
        """Tell the client that no more calls are accepted: gRPC repeats them elsewhere or later."""
        self.out.write_now(self._goodbye(ErrorCode.NO_ERROR))

    def _goodbye(self, code: ErrorCode) -> bytes:
        return frame(Frame.GOAWAY, 0, 0, struct.pack(">II", self._last, code))

    # ---- its thread ----------------------------------------------------------------------------

    def run(self) -> None:
        """Read frames until the connection ends."""
        try:
            self.transport.begin()
            self._greet()
            while self._fill(HEAD):
                self._read_frame()
        except ProtocolError as error:
            level = logging.INFO if self.is_trusted else logging.DEBUG
            _log.log(level, "Closed the connection from %s: %s.", self.transport.peer, error)
            with suppress(OSError):
                self.out.write([self._goodbye(error.code)])
                self.transport.linger(self._staged)
        except OSError as error:
            _log.debug("the connection of %s broke: %s", self.transport.peer, error)
        finally:
            self.out.close()
            for stream in list(self._streams.values()):
                stream.fail(EndedError("the client has gone"))
            self.out.end()

    def _greet(self) -> None:
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
            Setting.INITIAL_WINDOW_SIZE: INITIAL_WINDOW,
            Setting.MAX_FRAME_SIZE: _LARGEST_FRAME,
            Setting.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
        }
        self.out.write([frame(Frame.SETTINGS, 0, 0, settings_payload(settings))])
        if self._take(len(CLIENT_PREFACE)) != CLIENT_PREFACE:
            raise ProtocolError("it does not speak HTTP/2")

    def _read_frame(self) -> None:
        size, kind, flags, number = self._take_head()
        self._allowance.frame()
        if kind == Frame.DATA:
            self._data(size, flags, number)
            return
        if size > MOST_HEADER_BYTES:
            raise ProtocolError(f"a frame of {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
        payload = self._take(size)
        if kind == Frame.HEADERS:
            self._headers(payload, flags, number)
        elif kind == Frame.SETTINGS:
            self._settings(payload, flags)
        elif kind == Frame.PING:
            self._ping(payload, flags)
        elif kind == Frame.WINDOW_UPDATE:
            self._window_update(payload, number)
        elif kind == Frame.RST_STREAM:
            self._reset(number)
        elif kind in (Frame.PUSH_PROMISE, Frame.CONTINUATION):
            raise ProtocolError("a frame out of place")

    def _ping(self, payload: bytes, flags: int) -> None:
        if len(payload) != _PING_BYTES:
            raise ProtocolError("a PING of another size", ErrorCode.FRAME_SIZE_ERROR)
        if not flags & Flag.ACK:
            self.out.write([frame(Frame.PING, Flag.ACK, 0, payload)])

    def _reset(self, number: int) -> None:
        self._allowance.reset()
        stream = self._streams.get(number)
        if stream is not None:
            stream.fail(EndedError("the client cancelled the call"))

    def _data(self, size: int, flags: int, number: int) -> None:
        if size > _LARGEST_FRAME:
            raise ProtocolError(f"a frame of {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
        if number % 2 == 0 or number > self._last:
            raise ProtocolError("data without a call")
        stream = self._streams.get(number)
        if stream is not None and stream.has_ended:
            raise ProtocolError("data after the end of a call")
        self._room -= size
        if self._room < 0 or (stream is not None and not stream.take_room(size)):
            raise ProtocolError("more data than there is room for", ErrorCode.FLOW_CONTROL_ERROR)
        padding = 0
        if flags & Flag.PADDED and size:
            padding = self._take(1)[0]
            size -= 1 + padding
            if size < 0:
                raise ProtocolError("more padding than data")
            if stream is not None:
                stream.skip(1 + padding)
        self._allowance.data(size)
        self._receive(stream, size)
        self._receive(None, padding)
        if stream is not None and flags & Flag.END_STREAM:
            stream.end_messages()
        if self.is_trusted and self._room < _TRUSTED_WINDOW // 2:
            self._widen()

    def _receive(self, stream: Stream | None, left: int) -> None:
        while left:
            if self._begin == self._end:
                direct = stream.room_for(left) if stream is not None else None
                if stream is not None and direct is not None and len(direct) > _STAGED:
                    count = self.transport.recv_into(direct)
                    if not count:
                        raise OSError("the client has gone")
                    stream.received(count)
                    left -= count
                    continue
                if not self._fill(1):
                    raise OSError("the client has gone")
            count = min(left, self._end - self._begin)
            if stream is not None:
                stream.receive(self._staged[self._begin : self._begin + count])
            self._begin += count
            left -= count

    def _headers(self, payload: bytes, flags: int, number: int) -> None:
        block = unpadded(flags, payload)
        is_last = bool(flags & Flag.END_STREAM)
        for _ in range(_MOST_CONTINUATIONS):
            if flags & Flag.END_HEADERS:
                break
            size, kind, flags, same = self._take_head()
            if kind != Frame.CONTINUATION or same != number:
                raise ProtocolError("headers without an end")
            if len(block) + size > MOST_HEADER_BYTES:
                raise ProtocolError("too many headers", ErrorCode.ENHANCE_YOUR_CALM)
            block += self._take(size)
        if not flags & Flag.END_HEADERS:
            raise ProtocolError("too many headers", ErrorCode.ENHANCE_YOUR_CALM)
        headers = read_headers(self._decoder, block)
        known = self._streams.get(number)
        if known is not None:  # trailers: gRPC's clients send none
            known.end_messages()
            return
        if number % 2 == 0 or number <= self._last:
            raise ProtocolError("a call with a number out of turn")
        self._last = number
        stream = Stream(
            self, number, headers, self._service.room, self._service.most_message,
            self.out.initial_window,
        )  # fmt: skip
        self._streams[number] = stream
        if is_last:
            stream.end_messages()
        self._service.begin(stream)
        self._allowance.call()

    def _settings(self, payload: bytes, flags: int) -> None:
        if flags & Flag.ACK:
            return
        if len(payload) > _MOST_SETTINGS:
            raise ProtocolError("too many settings", ErrorCode.ENHANCE_YOUR_CALM)
        for key, value in read_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.out.set_initial_window(value, list(self._streams.values()))
            elif key == Setting.MAX_FRAME_SIZE:
                self.out.largest_frame = min(value, _LARGEST_FRAME)
        self.out.write([frame(Frame.SETTINGS, Flag.ACK, 0)])

    def _window_update(self, payload: bytes, number: int) -> None:
        if len(payload) != 4:
            raise ProtocolError("a WINDOW_UPDATE of another size", ErrorCode.FRAME_SIZE_ERROR)
        count = int.from_bytes(payload, "big") & MOST_WINDOW
        if not count:
            raise ProtocolError("a WINDOW_UPDATE of nothing")
        self._allowance.sent(self.out.sent)
        if number == 0:
            self.out.widen(None, count)
        elif (stream := self._streams.get(number)) is not None:
            self.out.widen(stream, count)

    def _take_head(self) -> tuple[int, int, int, int]:
        head = self._take(HEAD)
        return (
            int.from_bytes(head[:3], "big"),
            head[3],
            head[4],
            int.from_bytes(head[5:], "big") & MOST_WINDOW,
        )

    def _take(self, count: int) -> bytes:
        if not self._fill(count):
            raise OSError("the client has gone")
        found = bytes(self._staged[self._begin : self._begin + count])
        self._begin += count
        return found

    def _fill(self, count: int) -> bool:
        """Read until `count` bytes are staged; return False if the connection ended first."""
        while self._end - self._begin < count:
            if self._begin == self._end:
                self._begin = self._end = 0
            elif len(self._staged) - self._begin < count:
                rest = bytes(self._staged[self._begin : self._end])
                self._staged[: len(rest)] = rest
                self._begin, self._end = 0, len(rest)
            got = self.transport.recv_into(self._staged[self._end :])
            if not got:
                return False
            self._end += got
        return True

    # ---- for streams, from any thread ----------------------------------------------------------

    def trust(self) -> None:
        """Mark the client as trusted: it may send as much as its calls are granted room for."""
        if not self.is_trusted:
            self.is_trusted = True
            self._allowance.trust()
            self._widen()

    def _widen(self) -> None:
        count, self._room = _TRUSTED_WINDOW - self._room, _TRUSTED_WINDOW
        self.out.write([window_update(0, count)])

    def forget(self, stream: Stream) -> None:
        """Remove a call that is over."""
        self._streams.pop(stream.number, None)
