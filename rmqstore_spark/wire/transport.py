"""The socket of a connection, plain or TLS, of both ends."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmqstore_spark.remoting.addresses import address_text
from rmqstore_spark.wire.protocol import fingerprint

if TYPE_CHECKING:  # a command without TLS need not load it
    import ssl

    from rmqstore_spark.base.tlsstream import TlsStream

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_TIMEVAL: Final = struct.Struct("ll")
_MOST_PARTS: Final = 256
_SHORTEST: Final = 0.001
"""Seconds: a time limit of 0 is none to a socket."""
_LEAST_PART: Final = 0.99
"""A time limit that is a little longer than wanted stays: to set one is a system call."""
SEND_SECONDS: Final = 0.5
"""How often a peer that takes nothing is looked at."""
_WATCH_SECONDS: Final = 0.9 * SEND_SECONDS  # less, as a timer of the system may end a little early
_TLS_PIECE: Final = 256 << 10


class FileSpan(NamedTuple):
    """A part of a file.

    Attributes:
        descriptor: the open file.
        offset, length: bytes.
    """

    descriptor: int
    offset: int
    length: int


Part = bytes | memoryview | FileSpan
"""A part of what is sent."""


def part_size(part: Part) -> int:
    """Return the bytes of a part."""
    return part.length if isinstance(part, FileSpan) else len(part)


class PlainTransport:
    """A socket without encryption.

    Args:
        connection: an accepted socket.

    Attributes:
        peer: the peer's address or process, for messages to people.
        server: fingerprint of the certificate of the server among both; empty.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_SECONDS))
        if connection.family != socket.AF_UNIX:
            _keep(connection)
        self._socket = connection
        self._patience: float | None = None
        self.peer = peer_name(connection)
        self.server = b""

    def peek(self, seconds: float) -> bytes:
        """Wait for the first byte, and leave it there; return nothing at the end.

        Raises:
            TimeoutError: none came in time.
            OSError: the connection broke.
        """
        self._limit(seconds)
        try:
            return self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            raise TimeoutError("the peer sent nothing for too long") from None

    def recv_into(self, target: memoryview, seconds: float | None, *, whole: bool = False) -> int:
        """Receive bytes; return 0 at the end.

        Args:
            target: where they go.
            seconds: how long to wait for some; None: for ever.
            whole: wait until the target is full, or `seconds` are over.

        Raises:
            TimeoutError: none came in time.
            OSError: the connection broke.
        """
        self._limit(seconds)
        try:
            return self._socket.recv_into(target, 0, socket.MSG_WAITALL if whole else 0)
        except BlockingIOError:
            raise TimeoutError("the peer sent nothing for too long") from None

    def _limit(self, seconds: float | None) -> None:
        now = self._patience
        if seconds != now and not (seconds and now and _LEAST_PART * now <= seconds < now):
            self._patience = seconds
            limit = 0.0 if seconds is None else max(seconds, _SHORTEST)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit))

    def recv_now(self, target: memoryview) -> int | None:
        """Receive bytes that have arrived; return None if there are none, and 0 at the end.

        Raises:
            OSError: the connection broke.
        """
        try:
            return self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def send_now(self, data: bytes) -> int:
        """Send what the peer takes at once; return how many bytes that are.

        Raises:
            OSError: the connection broke.
        """
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send(self, parts: Sequence[Part], check: Callable[[int], None]) -> None:
        """Send all bytes of some parts. Only one thread may call this at a time.

        Args:
            parts: the parts.
            check: called about every SEND_SECONDS while the peer has not taken all, with the number
                of bytes that it has accepted; what it raises ends the sending.

        Raises:
            OSError: the connection broke, or a file was cut.
        """
        sent = 0
        buffers: list[memoryview] = []
        watch = _Watch(check)
        for part in parts:
            if isinstance(part, FileSpan):
                sent = self._send_file(part, self._send_buffers(buffers, sent, watch), watch)
                buffers = []
            else:
                buffers.append(memoryview(part))
        self._send_buffers(buffers, sent, watch)

    def _send_buffers(self, left: list[memoryview], sent: int, watch: _Watch) -> int:
        while left:
            try:
                count = self._socket.sendmsg(left[:_MOST_PARTS])
            except BlockingIOError:
                count = 0
            sent += count
            _drop(left, count)
            if left:
                watch.look(sent)
        return sent

    def _send_file(self, span: FileSpan, sent: int, watch: _Watch) -> int:
        at, end = span.offset, span.offset + span.length
        while at < end:
            try:
                count = os.sendfile(self._socket.fileno(), span.descriptor, at, end - at)
                if not count:
                    raise _cut()
            except BlockingIOError:
                count = 0
            at += count
            sent += count
            if at < end:
                watch.look(sent)
        return sent

    def stop_reading(self) -> None:
        """Make a thread that waits for bytes see the end; what it sends still arrives."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def stop_sending(self) -> None:
        """Let the peer see the end behind what was sent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection; a thread that reads from it sees the end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may use it any more."""
        self._socket.close()


class TlsTransport:
    """An encrypted socket, with the interface of `PlainTransport`.

    Args:
        connection: the socket.
        context: of the server, or of a client.
        host: the name or address in the server's certificate; None in the server itself.

    Attributes:
        peer: the peer's address, for messages to people.
        identity: the identity in the peer's certificate; empty without one.
        server: fingerprint of the server's certificate, at a client.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, host: str | None = None
    ) -> None:
        self._socket = connection
        self._context = context
        self._host = host
        self._tls: TlsStream | None = None
        self.peer = peer_name(connection)
        self.identity = ""
        self.server = b""

    def begin(self, seconds: float) -> None:
        """Do the handshake.

        Args:
            seconds: how long it may take.

        Raises:
            OSError: it failed, or took too long.
        """
        self._socket.settimeout(seconds)
        _keep(self._socket)
        # In two steps, so that `hang_up` can end a handshake that takes too long.
        tls = self._context.wrap_socket(
            self._socket,
            server_side=self._host is None,
            do_handshake_on_connect=False,
            server_hostname=self._host,
        )
        self._socket = tls
        tls.do_handshake()
        if self._host is None:
            self.identity = _identity(tls)
        else:
            self.server = fingerprint(tls.getpeercert(binary_form=True))
        from rmqstore_spark.base.tlsstream import TlsStream

        # Only now may other threads send: OpenSSL crashes if one does during the handshake.
        self._tls = TlsStream(tls, SEND_SECONDS)

    def recv_into(
        self,
        target: memoryview,
        seconds: float | None,
        *,
        whole: bool = False,  # noqa: ARG002 - a record of TLS is returned early
    ) -> int:
        """Receive bytes; return 0 at the end. `whole` has no effect."""
        return self._encrypted.recv_into(target, seconds)

    def recv_now(self, target: memoryview) -> int | None:
        """Receive bytes that have arrived; return None if there are none, and 0 at the end."""
        try:
            return self._encrypted.recv_into(target, 0.0)
        except TimeoutError:
            return None

    def send(self, parts: Sequence[Part], check: Callable[[int], None]) -> None:
        """Send all bytes of some parts. Only one thread may call this at a time."""
        tls, sent = self._encrypted, 0
        watch = _Watch(check)
        for part in _buffers(parts):
            left = memoryview(part)
            while left:
                try:
                    count = tls.send(left)
                except TimeoutError:
                    count = 0
                sent += count
                left = left[count:]
                if left:
                    watch.look(sent)

    @property
    def _encrypted(self) -> TlsStream:
        if self._tls is None:
            raise OSError("the connection is not encrypted yet")
        return self._tls

    def stop_reading(self) -> None:
        """Make a thread that waits for bytes see the end; what it sends still arrives."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def stop_sending(self) -> None:
        """Let the peer see the end behind what was sent."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection; a thread that reads from it sees the end."""
        with suppress(OSError):
            # SSLSocket's own shutdown would make a reading thread return encrypted bytes.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may use it any more."""
        self._socket.close()


Transport = PlainTransport | TlsTransport


class _Watch:
    """Calls a function while something is sent, about every SEND_SECONDS.

    A system call that sends some bytes, and then cannot send more, returns what it sent: a peer
    that takes little, but always some, would not be noticed otherwise.
    """

    def __init__(self, check: Callable[[int], None]) -> None:
        self._check = check
        self._next = time.monotonic() + _WATCH_SECONDS

    def look(self, sent: int) -> None:
        """Call the function if it is time, with the number of bytes that were sent."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _WATCH_SECONDS
            self._check(sent)


def peer_name(connection: socket.socket) -> str:
    """Return the peer's name: `host:port`, or the process behind a unix socket."""
    try:
        if connection.family == socket.AF_UNIX:
            option = getattr(socket, "SO_PEERCRED", None)
            if option is None:
                return "a local process"
            raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
            return f"process {_CREDENTIALS.unpack(raw)[0]}"
        return address_text(connection.getpeername())
    except OSError:
        return "a client that has gone"


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))


def _identity(connection: ssl.SSLSocket) -> str:
    """Return the owner of a client's certificate: its first SAN, else its CN, else its fingerprint.

    The kind is a prefix, so that `DNS:spark` and `CN:spark` are different clients.
    """
    certificate: dict[str, Any] = connection.getpeercert() or {}
    for kind, value in certificate.get("subjectAltName", ()):
        if value:
            return f"{kind}:{value}"
    for entry in certificate.get("subject", ()):
        for name, value in entry:
            if name == "commonName" and value:
                return f"CN:{value}"
    encoded = connection.getpeercert(binary_form=True)
    return hashlib.sha256(encoded).hexdigest() if encoded else ""


def _cut() -> OSError:
    return OSError("a file was cut while it was sent")


def _keep(connection: socket.socket) -> None:
    """Send at once, and notice after a while that the other machine has gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _buffers(parts: Sequence[Part]) -> Iterator[bytes | memoryview]:
    """Yield buffers to encrypt: small parts together, and a part of a file in pieces."""
    small: list[bytes | memoryview] = []
    for part in parts:
        if not isinstance(part, FileSpan) and len(part) < _TLS_PIECE:
            small.append(part)
            continue
        yield b"".join(small)
        small.clear()
        yield from _read(part) if isinstance(part, FileSpan) else (part,)
    yield b"".join(small)


def _read(span: FileSpan) -> Iterator[bytes]:
    at, end = span.offset, span.offset + span.length
    while at < end:
        data = os.pread(span.descriptor, min(_TLS_PIECE, end - at), at)
        if not data:
            raise _cut()
        at += len(data)
        yield data


def _drop(parts: list[memoryview], count: int) -> None:
    """Remove the first `count` bytes from some buffers, in place."""
    done = 0
    while done < len(parts) and count >= len(parts[done]):
        count -= len(parts[done])
        done += 1
    del parts[:done]
    if count:
        parts[0] = parts[0][count:]
