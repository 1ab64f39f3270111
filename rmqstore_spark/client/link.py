"""One connection to a store process: sends requests, and reads answers. For one thread."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.client.contact import looked_up
from rmqstore_spark.errors import FrameError, RefusedError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import frame_head
from rmqstore_spark.wire.endpoint import UNIX, Endpoint
from rmqstore_spark.wire.protocol import (
    MAX_ANSWER,
    MAX_FRAME,
    STATUS_FIELD,
    STORE_FIELD,
    Code,
    piece_lengths,
)
from rmqstore_spark.wire.staged import StagedBytes
from rmqstore_spark.wire.transport import PlainTransport, TlsTransport, Transport

if TYPE_CHECKING:
    import ssl

_STAGED: Final = 64 << 10
_MOST_PIECES: Final = 1 << 18


class Link:
    """A connection that is open. Times are `time.monotonic()`.

    Args:
        transport: its socket.
        store: name of the store that requests are about; empty for the only one.

    Attributes:
        used: when it was last given back, in monotonic seconds.
    """

    def __init__(self, transport: Transport, store: str) -> None:
        self._transport = transport
        self._ext = {STORE_FIELD: store} if store else {}
        self._staged = StagedBytes(_STAGED)
        self._pid = os.getpid()
        self.used = time.monotonic()

    def send(
        self,
        code: Code,
        body: Any,
        check: Callable[[int], None],
        number: int = 0,
        ext: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request.

        Args:
            code: its code.
            body: bytes-like.
            check: called about every half a second that the store process has not taken all, with
                the number of bytes that it has taken; what it raises ends the sending.
            number: repeated in the answer.
            ext: further fields of the header.

        Raises:
            OSError: the connection broke.
        """
        view = memoryview(body).cast("B")
        fields = {**self._ext, **ext} if ext else self._ext
        command = Command(code, fields, opaque=number, language="PYTHON")
        self._transport.send((frame_head(command, len(view), MAX_FRAME), view), check)

    def head(self, until: float) -> int:
        """Wait for the next answer; return the bytes of its body, which follow.

        Args:
            until: when it must be here.

        Raises:
            RefusedError: the request was refused.
            FrameError: what came is not an answer of a store process.
            TimeoutError: no answer came in time.
            OSError: the connection broke.
        """
        while (found := self._head()) is None:
            self._add(self._transport.recv_into(self._staged.free(), _left(until)))
        return found

    def ready_head(self) -> int | None:
        """Return what `head` does, if the next answer is here."""
        while (found := self._head()) is None:
            count = self._transport.recv_now(self._staged.free())
            if count is None:
                return None
            self._add(count)
        return found

    def answer(self, until: float, most: int = MAX_ANSWER) -> memoryview:
        """Return the body of the next answer.

        Raises:
            FrameError: it has more than `most` bytes.
            RefusedError, FrameError, TimeoutError, OSError: as for `head`.
        """
        size = self.head(until)
        if size > most:
            raise FrameError(f"an answer has {size} bytes")
        return self.body(size, until)

    def body(self, size: int, until: float) -> memoryview:
        """Return the next bytes of a body.

        Raises:
            TimeoutError: they did not come in time.
            OSError: the connection broke.
        """
        found = memoryview(bytearray(size))
        self.body_into(found, until)
        return found

    def body_into(self, out: memoryview, until: float) -> None:
        """Fill a buffer with the next bytes of a body; see `body`."""
        done = self._staged.take(out)
        while done < len(out):
            count = self._transport.recv_into(out[done:], _left(until), whole=True)
            if not count:
                raise _gone()
            done += count

    def pieces(self, until: float) -> tuple[Sequence[int], Sequence[bool]]:
        """Read the next answer to READ up to its pieces; return their lengths, and which are last.

        Raises:
            RefusedError, FrameError, TimeoutError, OSError: as for `head`.
        """
        size = self.head(until)
        count = int.from_bytes(self.body(min(4, size), until), "little")
        if not 0 < count <= _MOST_PIECES or size < 4 + 4 * count:
            raise FrameError(f"an answer of {size} bytes has {count} pieces")
        lengths, last = piece_lengths(bytes(self.body(4 * count, until)))
        if 4 + 4 * count + int(lengths.sum()) != size:
            raise FrameError(f"the pieces of an answer do not fill its {size} bytes")
        return lengths.tolist(), last.tolist()

    @property
    def server(self) -> bytes:
        """Fingerprint of the server's certificate; empty on a plain connection."""
        return self._transport.server

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open, and nothing came that was not asked for."""
        if len(self._staged):
            return False
        try:
            return self._transport.recv_now(self._staged.free()) is None
        except OSError:
            return False

    def close(self) -> None:
        """End the connection; a fork of the process that opened it leaves it open for that one."""
        if self._pid == os.getpid():
            self._transport.hang_up()
        self._transport.close()

    def _head(self) -> int | None:
        found = self._staged.head()
        if found is None:
            return None
        self._staged.pass_head()
        answer, size = found
        if not answer.is_response:
            raise FrameError("it sent a request")
        if answer.code != ResponseCode.SUCCESS:
            status = answer.ext.get(STATUS_FIELD)
            if status is None:
                raise FrameError(f"it refused the request: {answer.remark}")
            raise RefusedError(answer.remark or "", status)
        return size

    def _add(self, count: int) -> None:
        if not count:
            raise _gone()
        self._staged.add(count)


def _gone() -> OSError:
    return ConnectionResetError("the store process closed the connection")


def connect(endpoint: Endpoint, context: ssl.SSLContext | None, seconds: float) -> Link:
    """Connect to a store process.

    Args:
        endpoint: where it is.
        context: for TLS; None without.
        seconds: how long it may take.

    Raises:
        OSError: nothing answers there, or it has another certificate than it should.
    """
    until = time.monotonic() + seconds
    opened = _opened(endpoint, until)
    try:
        if context is None:
            return Link(PlainTransport(opened), endpoint.store)
        transport = TlsTransport(opened, context, endpoint.host)
    except BaseException:
        opened.close()
        raise
    try:
        transport.begin(_left(until))
    except BaseException:
        transport.close()  # TLS has taken the socket over
        raise
    return Link(transport, endpoint.store)


def _opened(endpoint: Endpoint, until: float) -> socket.socket:
    """Open a socket: to the first address of a host that answers."""
    if endpoint.scheme == UNIX:
        return _opened_to(socket.AF_UNIX, endpoint.path, until)
    places = looked_up(endpoint.host, endpoint.port, _left(until))
    for number, (family, _, _, _, address) in enumerate(places):
        left = _left(until) / (len(places) - number)  # one that is silent may not be the only one
        try:
            return _opened_to(family, address, time.monotonic() + left)
        except OSError:
            if number == len(places) - 1:
                raise
    raise OSError(f"the name {endpoint.host} has no address")


def _opened_to(family: int, address: Any, until: float) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.settimeout(_left(until))
        opened.connect(address)
    except BaseException:
        opened.close()
        raise
    return opened


def _left(until: float) -> float:
    """Return the seconds until a time.

    Raises:
        TimeoutError: it is over.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
