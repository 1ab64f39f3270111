"""Listens on a port, on which the first bytes of a connection decide where it goes.

Plain and TLS connections share a port, as in RocketMQ. So does another protocol: its clients begin
with a request of it, or ask for it in the TLS handshake (ALPN).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.addresses import BACKLOG, address_text, listen
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.codec.command import decode_header
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, MAX_FRAME, frame_lengths
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.remoting.tls import HANDSHAKE, ServerTls, TlsMode
from rmqstore_spark.remoting.tls_session import TlsSession, received_buffer

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.1
_BEGIN_SECONDS: Final = 10.0
"""How long a connection may take from its first byte until it is clear what it is."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


_RECORD: Final = 5
"""Bytes before the first message of a TLS handshake: type, version, length."""
_MOST_PEEKED: Final = 1 << 14


class OtherProtocol(NamedTuple):
    """A protocol that shares the port.

    Attributes:
        codes: the codes of its requests.
        alpn: its name in TLS handshakes.
        take: gets each connection that begins so, in the thread of the event loop; nothing of it
            has been read. It must not wait.
        make_room: ends an idle connection of the protocol: no more files can be opened.
    """

    codes: range
    alpn: str
    take: Callable[[socket.socket], object]
    make_room: Callable[[], object]


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
        other: another protocol on this port.
    """

    def __init__(
        self, home: Home, tls: ServerTls, limits: Limits, other: OtherProtocol | None = None
    ) -> None:
        self._home = home
        self._tls = tls
        self._limits = limits
        self._other = other
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._silent = _SilentConnections(limits.idle_seconds)
        self._received = received_buffer()

    async def start(self, bound: socket.socket) -> str:
        """Begin to listen.

        Args:
            bound: a socket of `bound_port`; it is closed here.

        Returns:
            The address that it listens on, as `host:port`.

        Raises:
            ServiceError: another process listens there.
        """
        self._socket = bound
        listen(bound)
        bound.setblocking(False)
        if self._tls.mode is TlsMode.DISABLED and self._other is None:
            self._server = await asyncio.get_running_loop().create_server(
                self._home.new_connection, sock=bound, backlog=BACKLOG
            )
        else:
            self._accepting = asyncio.create_task(self._accept(bound))
        return address_text(bound.getsockname())

    async def close(self) -> None:
        """Stop listening, and forget connections that have not begun."""
        if self._server is not None:
            self._server.close()
            return
        self._silent.close()
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
            except OSError as error:  # perhaps the other end has gone already
                if error.errno in _NO_ROOM:
                    self._home.log.warning("", "No more connections can be accepted: %s.", error)
                    if self._other is not None:
                        self._other.make_room()
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception:  # noqa: BLE001 - nobody could connect any more
                _log.exception("A connection could not be accepted.")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _accept_one(self, listening: socket.socket) -> None:
        accepted, address = await asyncio.get_running_loop().sock_accept(listening)
        try:
            peer = address_text(address)
            if self._home.has_room(len(self._opening) + len(self._silent), peer):
                accepted.setblocking(False)
                self._silent.keep(accepted, lambda: self._begin(accepted, peer))
            else:
                accepted.close()
        except BaseException:
            accepted.close()
            raise

    def _begin(self, accepted: socket.socket, peer: str) -> None:
        task = asyncio.create_task(self._open(accepted, peer))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, peer: str) -> None:
        is_taken = False
        try:
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            is_taken = await self._hand_over(accepted, peer)
        except (asyncio.TimeoutError, ConnectionError):
            pass  # it says nothing, or has gone
        except (OSError, ssl.CertificateError) as error:
            reason = getattr(error, "reason", None) or error
            self._home.log.warning(
                peer, "%s did not begin a TLS session: %s.", escaped(peer), escaped(str(reason))
            )
        except Exception as error:  # noqa: BLE001 - it must end this connection only
            self._home.log.log(
                logging.ERROR, peer, "The connection of %s could not be opened.", escaped(peer),
                error=error,
            )  # fmt: skip
        finally:
            if not is_taken:
                accepted.close()

    async def _hand_over(self, accepted: socket.socket, peer: str) -> bool:
        """Find out what a connection is, and give it to who serves that; return whether it was."""
        first = await asyncio.wait_for(_peeked(accepted, 1), self._limits.idle_seconds)
        if not first:
            return False
        if self._other is not None:
            begins = _begins_so(accepted, first == HANDSHAKE, self._other)
            if await asyncio.wait_for(begins, min(_BEGIN_SECONDS, self._limits.frame_seconds)):
                self._other.take(accepted)
                return True
        if first == HANDSHAKE and self._tls.context is not None:
            await self._open_tls(accepted, self._tls.context)
            return True
        if self._tls.mode is TlsMode.ENFORCING:
            self._home.log.warning(
                peer, "%s did not use TLS, without which nobody may talk here.", escaped(peer)
            )
            return False
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._home.new_connection, accepted)
        return True

    async def _open_tls(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        home, received = self._home, self._received
        _, session = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: TlsSession(context, home.new_connection, received), accepted
        )
        try:
            await asyncio.wait_for(session.begun, self._limits.frame_seconds)
        except asyncio.TimeoutError as error:
            session.abort()
            raise OSError("the handshake took too long") from error
        except asyncio.CancelledError:
            session.abort()
            raise


class _SilentConnections:
    """Connections from which nothing has come yet.

    A task for each would cost several kB, which the process would keep after 10,000 clients have
    connected at once.

    Args:
        seconds: how long a connection may be silent before it is closed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[socket.socket, float] = {}  # in the order of the times
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until)

    def keep(self, accepted: socket.socket, begin: Callable[[], object]) -> None:
        """Keep a connection, and call `begin` when its first bytes have come."""
        loop = asyncio.get_running_loop()
        loop.add_reader(accepted, self._heard, accepted, begin)
        self._until[accepted] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._end_overdue)

    def close(self) -> None:
        """Close all."""
        if self._timer is not None:
            self._timer.cancel()
        for accepted in list(self._until):
            self._end(accepted)

    def _heard(self, accepted: socket.socket, begin: Callable[[], object]) -> None:
        del self._until[accepted]
        asyncio.get_running_loop().remove_reader(accepted)
        begin()

    def _end_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        while self._until:
            accepted, until = next(iter(self._until.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._end_overdue)
                return
            self._end(accepted)
        self._timer = None

    def _end(self, accepted: socket.socket) -> None:
        del self._until[accepted]
        asyncio.get_running_loop().remove_reader(accepted)
        accepted.close()


async def _begins_so(accepted: socket.socket, is_tls: bool, other: OtherProtocol) -> bool:
    """Return whether a connection begins as those of another protocol do."""
    if not is_tls:
        return await _first_code(accepted) in other.codes
    record = await _peeked(accepted, _RECORD)
    size = min(int.from_bytes(record[3:], "big"), _MOST_PEEKED)
    return _only_protocol(other.alpn) in await _peeked(accepted, _RECORD + size)


async def _first_code(accepted: socket.socket) -> int:
    """Return the code of the first request; -1 if it is none."""
    try:
        head = await _peeked(accepted, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return -1
        form, size, _ = frame_lengths(memoryview(head), 0, MAX_FRAME)
        header = await _peeked(accepted, HEAD_BYTES + min(size, _MOST_PEEKED))
        return decode_header(form, header[HEAD_BYTES:]).code
    except FrameError:
        return -1


def _only_protocol(name: str) -> bytes:
    """Return the ALPN extension of a client that talks one protocol (RFC 7301, section 3.1)."""
    inner = bytes([len(name)]) + name.encode()
    named = len(inner).to_bytes(2, "big") + inner
    return b"\0\x10" + len(named).to_bytes(2, "big") + named


async def _peeked(accepted: socket.socket, count: int) -> bytes:
    """Return the first bytes that come, and leave them there; fewer if the other end goes."""
    with suppress(BlockingIOError):
        there = accepted.recv(count, socket.MSG_PEEK)
        if not there or len(there) == count:
            return there
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    # The loop is woken when all are here, and not again and again when some are.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    loop.add_reader(accepted, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            with suppress(BlockingIOError):  # the loop can be told of bytes that do not come
                return accepted.recv(count, socket.MSG_PEEK)
    finally:
        loop.remove_reader(accepted)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
