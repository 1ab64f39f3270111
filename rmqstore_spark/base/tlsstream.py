"""A TLS connection that one thread can read while another one writes."""

from __future__ import annotations

import select
import ssl
import threading
import time
from typing import Final

_PIECE: Final = 256 << 10


class TlsStream:
    """The bytes of a TLS connection.

    OpenSSL lets only one thread at a time use a connection. A thread therefore waits for the socket
    without the lock, and holds it only while bytes are encrypted or decrypted.

    Args:
        connection: after its handshake. Nobody else may read or write it.
        write_seconds: how long the peer may accept nothing before the connection breaks.
    """

    def __init__(self, connection: ssl.SSLSocket, write_seconds: float) -> None:
        connection.settimeout(0)
        self._connection = connection
        self._write_seconds = write_seconds
        self._lock = threading.Lock()

    def recv_into(self, target: memoryview, seconds: float | None = None) -> int:
        """Receive bytes; return 0 at the end.

        Args:
            target: where they go.
            seconds: how long to wait for some; None: for ever.

        Raises:
            TimeoutError: none came in time.
            OSError: the connection broke.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                with self._lock:
                    return self._connection.recv_into(target)
            except ssl.SSLWantReadError:
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                self._await(select.POLLIN, left)
            except ssl.SSLWantWriteError:
                self._await(select.POLLOUT, self._write_seconds)
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0

    def send(self, data: memoryview) -> int:
        """Send some bytes, and return how many. Only one thread may call this at a time.

        If fewer than all were sent, the rest must be sent next.

        Raises:
            TimeoutError: the peer accepted nothing for too long.
            OSError: the connection broke.
        """
        while True:
            try:
                with self._lock:
                    return self._connection.send(data[:_PIECE])
            except ssl.SSLWantWriteError:
                self._await(select.POLLOUT, self._write_seconds)
            except ssl.SSLWantReadError:
                self._await(select.POLLIN, self._write_seconds)

    def _await(self, event: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        if not poll.poll(None if seconds is None else seconds * 1000):
            raise TimeoutError("the peer sent or read nothing for too long")
