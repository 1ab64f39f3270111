"""Listens on a port, on which the first byte of a connection decides between plain and TLS."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.addresses import address_text
from rmqstore_spark.remoting.limits import Limits
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.remoting.tls import HANDSHAKE, ServerTls, TlsMode
from rmqstore_spark.remoting.tls_session import TlsSession, received_buffer

__all__ = ["Home", "PortListener"]

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_PAUSE_SECONDS: Final = 0.1


class Home(Protocol):
    """Where accepted connections go."""

    @property
    def log(self) -> PeerLog:
        """For lines about the other ends."""

    def new_connection(self) -> asyncio.BufferedProtocol:
        """Return the protocol of a new connection."""

    def has_room(self, opening: int, peer: str) -> bool:
        """Return whether one more may be opened.

        Args:
            opening: connections that have not begun yet.
            peer: address of the other end.
        """


class PortListener:
    """Accepts connections.

    Args:
        home: where they go.
        tls: which of them are accepted.
        limits: bounds of their times before they begin.
    """

    def __init__(self, home: Home, tls: ServerTls, limits: Limits) -> None:
        self._home = home
        self._tls = tls
        self._limits = limits
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._received = received_buffer()

    async def start(self, host: str, port: int) -> str:
        """Begin to listen.

        Args:
            host: IP address to listen on.
            port: port to listen on; 0 for any free one.

        Returns:
            The address that it listens on, as `host:port`.

        Raises:
            ServiceError: nothing can listen there.
        """
        loop = asyncio.get_running_loop()
        try:
            self._socket = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
            )
            self._socket.setblocking(False)
            if self._tls.mode is TlsMode.DISABLED:
                self._server = await loop.create_server(
                    self._home.new_connection, sock=self._socket, backlog=_BACKLOG
                )
        except OSError as error:
            where = address_text((host, port))
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
            raise ServiceError(
                f"Nothing can listen on {where}: {reason}. Choose an address of this machine and a "
                "port that no other process uses."
            ) from error
        address = address_text(self._socket.getsockname())
        if self._server is None:
            self._accepting = asyncio.create_task(self._accept(self._socket))
        return address

    async def close(self) -> None:
        """Stop listening, and forget connections that have not begun."""
        if self._server is not None:
            self._server.close()
            return
        tasks = [*self._opening, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                await self._accept_one(listening)
            except OSError:  # too many files are open, or the other end has gone already
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception:  # noqa: BLE001 - nobody could connect any more
                _log.exception("A connection could not be accepted.")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _accept_one(self, listening: socket.socket) -> None:
        accepted, address = await asyncio.get_running_loop().sock_accept(listening)
        try:
            peer = address_text(address)
            if self._home.has_room(len(self._opening), peer):
                task = asyncio.create_task(self._open(accepted, peer))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()
        except BaseException:
            accepted.close()
            raise

    async def _open(self, accepted: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        try:
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await asyncio.wait_for(_first_byte(accepted), self._limits.idle_seconds)
            if first == HANDSHAKE:
                await self._open_tls(accepted)
                return
            if first and self._tls.mode is TlsMode.PERMISSIVE:
                await loop.connect_accepted_socket(self._home.new_connection, accepted)
                return
            if first:
                self._home.log.warning(
                    peer, "%s did not use TLS, without which nobody may talk here.", escaped(peer)
                )
        except asyncio.TimeoutError:
            pass
        except (OSError, ssl.CertificateError) as error:
            reason = getattr(error, "reason", None) or error
            self._home.log.warning(
                peer, "%s did not begin a TLS session: %s.", escaped(peer), escaped(str(reason))
            )
        except asyncio.CancelledError:
            accepted.close()
            raise
        accepted.close()

    async def _open_tls(self, accepted: socket.socket) -> None:
        context, home, received = self._tls.context, self._home, self._received
        assert context is not None  # noqa: S101  # the mode is not DISABLED
        _, session = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: TlsSession(context, home.new_connection, received), accepted
        )
        try:
            await asyncio.wait_for(session.begun, self._limits.frame_seconds)
        except asyncio.TimeoutError as error:
            session.abort()
            raise ConnectionError("the handshake took too long") from error
        except asyncio.CancelledError:
            session.abort()
            raise


async def _first_byte(accepted: socket.socket) -> bytes:
    """Return the first byte that comes, and leave it there; nothing if the other end goes."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            with suppress(BlockingIOError):  # the loop can be told of bytes that do not come
                return accepted.recv(1, socket.MSG_PEEK)
    finally:
        loop.remove_reader(accepted)
