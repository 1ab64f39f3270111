"""TLS on a server's connection, with buffers that its event loop's connections share.

asyncio and uvloop keep a buffer of 256 KiB for each connection's decrypted bytes, which 4,000 idle
connections turn into 1 GB. Here, bytes are decrypted straight into the buffer that the connection
asks for, and what OpenSSL keeps of a connection is some ten KiB.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np

_READ_BYTES: Final = 32 << 10
"""Most encrypted bytes of a read. OpenSSL keeps as much memory for each connection."""
_PIECE: Final = 64 << 10
"""Bytes that are encrypted before they go to the socket."""


def received_buffer() -> memoryview:
    """Return a buffer for the encrypted bytes of the next read of any connection of a loop."""
    return memoryview(np.empty(_READ_BYTES, np.uint8))  # type: ignore[arg-type]


class TlsSession(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of the socket, and the transport of a connection that knows no TLS.

    Args:
        context: of the server.
        new_connection: makes the connection, when the handshake is done.
        received: see `received_buffer`.

    Attributes:
        begun: done when the connection has begun. Its error is an OSError: the handshake failed.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        new_connection: Callable[[], asyncio.BufferedProtocol],
        received: memoryview,
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._new_connection = new_connection
        self._received = received
        self._connection: asyncio.BufferedProtocol | None = None
        self._is_paused = False
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake."""
        self._socket = cast(asyncio.Transport, transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where encrypted bytes go."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take encrypted bytes."""
        self._incoming.write(self._received[:nbytes])
        self._proceed()

    def eof_received(self) -> None:
        """Tell the connection; the socket is closed then."""
        if self._connection is not None:
            self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            self._connection.connection_lost(exc)
        self._fail(ConnectionError("the connection was closed during the handshake"))

    def pause_writing(self) -> None:
        """Tell the connection."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        if self._connection is not None:
            self._connection.resume_writing()

    # ---- the connection's transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the socket."""
        return self._socket.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt bytes, and send them."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Encrypt bytes, and send them."""
        if self._socket.is_closing():
            return
        try:
            self._socket.writelines(list(self._encrypted(list_of_data)))
        except ssl.SSLError:
            self._socket.abort()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set them for encrypted bytes."""
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes the socket has not taken."""
        return self._socket.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Read no more; what has been received stays encrypted."""
        self._is_paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read on, in the loop's next turn."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._read_on)

    def is_closing(self) -> bool:
        """Return whether it is closed, or will be."""
        return self._socket.is_closing()

    def close(self) -> None:
        """Close the connection when all has been sent."""
        if not self._socket.is_closing():
            with suppress(ssl.SSLError):  # nobody waits for the other end's farewell
                self._tls.unwrap()
            self._send_own()
            self._socket.close()

    def abort(self) -> None:
        """Close the connection now."""
        self._socket.abort()

    # ---- TLS

    def _proceed(self) -> None:
        try:
            if self._connection is None:
                self._tls.do_handshake()
                self._send_own()
                self._connection = self._new_connection()
                self._connection.connection_made(self)
                self.begun.set_result(None)
            self._decrypt(self._connection)
        except ssl.SSLWantReadError:
            self._send_own()
        except ssl.SSLError as error:
            self._send_own()  # it says why
            self._fail(error)
            self._socket.close()

    def _decrypt(self, connection: asyncio.BufferedProtocol) -> None:
        """Give the connection what was received, as long as it reads."""
        while not self._is_paused and not self._socket.is_closing():
            target = memoryview(connection.get_buffer(-1))
            count = has_ended = 0
            try:
                while count < len(target) and not has_ended:
                    read = cast(int, self._tls.read(len(target) - count, target[count:]))
                    count += read
                    has_ended = not read
            except ssl.SSLWantReadError:
                if not count:
                    raise
            if count:
                connection.buffer_updated(count)
            if has_ended:
                connection.eof_received()
                self.close()

    def _encrypted(self, given: Iterable[bytes | bytearray | memoryview[Any]]) -> Iterable[bytes]:
        for data in given:
            view = memoryview(data).cast("B")
            at = 0
            while at < len(view):
                at += self._tls.write(view[at : at + _PIECE])
                if self._outgoing.pending >= _PIECE:
                    yield self._outgoing.read()
        if self._outgoing.pending:
            yield self._outgoing.read()

    def _send_own(self) -> None:
        """Send what TLS itself has to say."""
        if self._outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())

    def _read_on(self) -> None:
        if not self._is_paused and not self._socket.is_closing():
            self._proceed()
            if not self._is_paused:
                self._socket.resume_reading()

    def _fail(self, error: OSError) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
