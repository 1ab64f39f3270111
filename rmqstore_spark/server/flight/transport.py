"""The socket of a connection, plain or TLS. One thread can read while others write."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rmqstore_spark.tlsstream import TlsStream

__all__ = ["PlainTransport", "TlsTransport", "Transport"]

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_TIMEVAL: Final = struct.Struct("ll")
_MOST_PARTS: Final = 256
_HANDSHAKE_SECONDS: Final = 10.0
_LINGER_SECONDS: Final = 0.5
_TLS_PIECE: Final = 256 << 10


class PlainTransport:
    """A socket without encryption.

    Args:
        connection: an accepted socket.
        write_seconds: how long the peer may accept nothing before the connection breaks.

    Attributes:
        peer: the peer's address or process, for messages to people.
        identity: the identity in the peer's certificate; empty without one.
    """

    def __init__(self, connection: socket.socket, write_seconds: float) -> None:
        connection.settimeout(None)
        seconds = _TIMEVAL.pack(int(write_seconds), int(write_seconds % 1 * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.peer = peer_name(connection)
        self.identity = ""

    def begin(self) -> None:
        """Do nothing: a plain connection has no handshake."""

    def recv_into(self, target: memoryview) -> int:
        """Receive bytes; return 0 at the end.

        Raises:
            OSError: the connection broke.
        """
        return self._socket.recv_into(target)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all bytes of some buffers. Only one thread may call this at a time.

        Raises:
            OSError: the connection broke, or its peer accepted nothing for too long.
        """
        for at in range(0, len(parts), _MOST_PARTS):
            left = [memoryview(part) for part in parts[at : at + _MOST_PARTS]]
            while left:
                _drop(left, self._socket.sendmsg(left))

    def send_now(self, data: bytes) -> None:
        """Send a few bytes if this needs no waiting."""
        with suppress(OSError):
            self._socket.send(data, socket.MSG_DONTWAIT)

    def linger(self, scratch: memoryview) -> None:
        """Stop sending, and briefly discard what the peer still sends.

        If a socket is closed with unread bytes, the peer loses what it has not read yet.
        """
        self._socket.shutdown(socket.SHUT_WR)
        self._socket.settimeout(_LINGER_SECONDS)
        deadline = time.monotonic() + _LINGER_SECONDS
        while time.monotonic() < deadline and self._socket.recv_into(scratch):
            pass

    def hang_up(self) -> None:
        """End the connection; a thread that reads from it sees the end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may use it any more."""
        self._socket.close()


class TlsTransport:
    """An encrypted socket, with the interface of `PlainTransport`."""

    def __init__(
        self, connection: socket.socket, write_seconds: float, context: ssl.SSLContext
    ) -> None:
        self._socket = connection
        self._write_seconds = write_seconds
        self._context = context
        self._tls: TlsStream | None = None
        self.peer = peer_name(connection)
        self.identity = ""

    def begin(self) -> None:
        """Do the handshake.

        Raises:
            OSError: it failed, or took too long.
        """
        self._socket.settimeout(_HANDSHAKE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In two steps, so that `hang_up` can end a handshake that takes too long.
        tls = self._context.wrap_socket(
            self._socket, server_side=True, do_handshake_on_connect=False
        )
        self._socket = tls
        tls.do_handshake()
        self.identity = _identity(tls)
        # Only now may other threads send: OpenSSL crashes if one does during the handshake.
        self._tls = TlsStream(tls, self._write_seconds)

    def recv_into(self, target: memoryview) -> int:
        """Receive bytes; return 0 at the end."""
        return self._encrypted.recv_into(target)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all bytes of some buffers. Only one thread may call this at a time."""
        small = b"".join(part for part in parts if len(part) < _TLS_PIECE)
        if sum(map(len, parts)) == len(small):
            parts = [small]
        tls = self._encrypted
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[tls.send(left) :]

    def send_now(self, data: bytes) -> None:
        """Send a few bytes if this needs no waiting."""
        if self._tls is not None:
            self._tls.send_now(data)

    def linger(self, scratch: memoryview) -> None:
        """Do nothing: a client that breaks the protocol after a handshake needs no explanation."""

    @property
    def _encrypted(self) -> TlsStream:
        if self._tls is None:
            raise OSError("the connection is not encrypted yet")
        return self._tls

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
