"""The socket of a connection, plain or TLS, of both ends."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from rmqstore_spark.tlsstream import TlsStream

__all__ = ["PlainTransport", "TlsTransport", "Transport"]

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_TIMEVAL: Final = struct.Struct("ll")
_MOST_PARTS: Final = 256
_HANDSHAKE_SECONDS: Final = 10.0
_SHORTEST: Final = 0.001
"""Seconds: a time limit of 0 is none to a socket."""
SEND_SECONDS: Final = 0.5
"""How often a peer that does not take all is looked at."""
_TLS_PIECE: Final = 256 << 10


class PlainTransport:
    """A socket without encryption.

    Args:
        connection: an accepted socket.

    Attributes:
        peer: the peer's address or process, for messages to people.
        identity: the identity in the peer's certificate; empty without one.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_SECONDS))
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._patience: float | None = None
        self.peer = peer_name(connection)
        self.identity = ""

    def begin(self, seconds: float = _HANDSHAKE_SECONDS) -> None:
        """Do nothing: a plain connection has no handshake."""

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
        if seconds != self._patience:
            self._patience = seconds
            limit = 0.0 if seconds is None else max(seconds, _SHORTEST)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit))
        try:
            return self._socket.recv_into(target, 0, socket.MSG_WAITALL if whole else 0)
        except BlockingIOError:
            raise TimeoutError("the peer sent nothing for too long") from None

    def recv_now(self, target: memoryview) -> int | None:
        """Receive bytes that have arrived; return None if there are none, and 0 at the end.

        Raises:
            OSError: the connection broke.
        """
        try:
            return self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def send(self, parts: Sequence[bytes | memoryview], check: Callable[[int], None]) -> None:
        """Send all bytes of some buffers. Only one thread may call this at a time.

        Args:
            parts: the buffers.
            check: called with the number of bytes that the peer has accepted, about every
                SEND_SECONDS that it has not accepted all; what it raises ends the sending.

        Raises:
            OSError: the connection broke.
        """
        sent = 0
        for at in range(0, len(parts), _MOST_PARTS):
            left = [memoryview(part) for part in parts[at : at + _MOST_PARTS]]
            while left:
                try:
                    count = self._socket.sendmsg(left)
                except BlockingIOError:
                    check(sent)
                    continue
                sent += count
                _drop(left, count)
                if left:  # it accepted a part in SEND_SECONDS
                    check(sent)

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

    def begin(self, seconds: float = _HANDSHAKE_SECONDS) -> None:
        """Do the handshake.

        Args:
            seconds: how long it may take.

        Raises:
            OSError: it failed, or took too long.
        """
        self._socket.settimeout(seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In two steps, so that `hang_up` can end a handshake that takes too long.
        tls = self._context.wrap_socket(
            self._socket,
            server_side=self._host is None,
            do_handshake_on_connect=False,
            server_hostname=self._host,
        )
        self._socket = tls
        tls.do_handshake()
        self.identity = _identity(tls) if self._host is None else ""
        # Only now may other threads send: OpenSSL crashes if one does during the handshake.
        self._tls = TlsStream(tls, SEND_SECONDS)

    def recv_into(
        self,
        target: memoryview,
        seconds: float | None,
        *,
        whole: bool = False,  # noqa: ARG002 - as for `PlainTransport`; a record is returned early
    ) -> int:
        """Receive bytes; return 0 at the end."""
        return self._encrypted.recv_into(target, seconds)

    def recv_now(self, target: memoryview) -> int | None:
        """Receive bytes that have arrived; return None if there are none, and 0 at the end."""
        try:
            return self._encrypted.recv_into(target, 0.0)
        except TimeoutError:
            return None

    def send(self, parts: Sequence[bytes | memoryview], check: Callable[[int], None]) -> None:
        """Send all bytes of some buffers. Only one thread may call this at a time."""
        small = b"".join(part for part in parts if len(part) < _TLS_PIECE)
        if sum(map(len, parts)) == len(small):
            parts = [small]
        tls, sent = self._encrypted, 0
        due = time.monotonic() + SEND_SECONDS
        for part in parts:
            left = memoryview(part)
            while left:
                with suppress(TimeoutError):
                    count = tls.send(left)
                    sent += count
                    left = left[count:]
                if left and time.monotonic() >= due:
                    check(sent)
                    due = time.monotonic() + SEND_SECONDS

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


def peer_name(connection: socket.socket) -> str:
    """Return the peer's name: `host:port`, or the process behind a unix socket."""
    try:
        if connection.family == socket.AF_UNIX:
            option = getattr(socket, "SO_PEERCRED", None)
            if option is None:
                return "a local process"
            raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
            return f"process {_CREDENTIALS.unpack(raw)[0]}"
        host, port = connection.getpeername()[:2]
    except OSError:
        return "a client that has gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def _drop(parts: list[memoryview], count: int) -> None:
    """Remove the first `count` bytes from some buffers, in place."""
    done = 0
    while done < len(parts) and count >= len(parts[done]):
        count -= len(parts[done])
        done += 1
    del parts[:done]
    if count:
        parts[0] = parts[0][count:]
