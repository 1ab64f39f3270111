"""Serves one or several stores to Spark and the command, on a port, a unix socket, or both.

Each connection has a thread. Whatever a client does or sends can only end its own connection.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.addresses import address_text, listen
from rmqstore_spark.remoting.listener import OtherProtocol
from rmqstore_spark.remoting.tls import PLAIN, ServerTls
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.calls import Calls
from rmqstore_spark.server.connections.connection import ClientConnection
from rmqstore_spark.server.connections.listener import Connections, Listener
from rmqstore_spark.server.requests import Requests
from rmqstore_spark.server.stores.served import ServedStore, StoresByName
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.protocol import ALPN, CODES

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

_BACKLOG: Final = 512
_CONNECTIONS_PER_STREAM: Final = 4
_CUT_SECONDS: Final = 5.0


class StoreServer:
    """Serves stores, from its construction until `close`.

    Args:
        stores: the stores, with different names; the server does not close them.
        config: where to listen, and limits.
        protection: accounts and TLS.
        bound: the socket of its port, which does not listen yet; None without one.
        stop: called, from another thread, when a client asks the process to stop.

    Attributes:
        endpoints: its endpoints; the port's comes before the socket's. None if neither is
            configured: then only RocketMQ's clients, or slaves, use the process.
        room: the room for blocks that are received but not handled.

    Raises:
        OptionError: the socket's folder is open to others.
        ServiceError: an address is in use, or cannot be bound.
    """

    def __init__(
        self,
        stores: Sequence[ServedStore],
        config: StoreConfig,
        protection: Protection,
        bound: socket.socket | None,
        stop: Callable[[], None],
    ) -> None:
        self._calls = Calls(config.max_streams)
        self._path: str | None = None  # set once this process has bound it
        self._listeners: list[Listener] = []
        self._protection = protection
        self._service = service = Requests(StoresByName(stores), config, self._calls, stop)
        self.room = service.room
        self._failures = service.failures
        ways = 2 if config.listen_socket else 1
        most = _most_connections(config.max_streams) // ways
        self._connections = Connections(self._remote, most)
        self._local_ones = Connections(self._local, most)
        self.endpoints: list[Endpoint] = []
        try:
            if bound is not None and config.serves_spark:
                self.endpoints.append(_endpoint(bound, protection.tls))
                # A broker listens itself, and hands over who talks this protocol.
                if not config.is_broker:
                    listen(bound)
                    self._listeners.append(Listener(bound, self._connections))
            if config.listen_socket:
                self._listen_on(os.path.abspath(config.listen_socket))
        except BaseException:
            self.close()
            raise

    @property
    def protocol(self) -> OtherProtocol:
        """What shows the listener of a broker which connections are for this server."""
        connections = self._connections
        return OtherProtocol(CODES, ALPN, connections.take, lambda: connections.end_idle(1))

    def _listen_on(self, path: str) -> None:
        if "#" in path:
            raise OptionError(
                f"listenSocket {path} has a #, which begins the name of a store in an "
                "endpoint. Choose another name for the socket."
            )
        endpoint = parse_endpoint(f"{UNIX}://{path}")
        listening = _listen_on_path(path)
        self._path = path
        self._listeners.append(Listener(listening, self._local_ones))
        self.endpoints.append(endpoint)

    def _remote(self, accepted: socket.socket) -> ClientConnection:
        # As RocketMQ's clients are told apart: one of IPv4 has its own address on a port of IPv6.
        host = address_text(accepted.getpeername()).rpartition(":")[0].strip("[]")
        caller = Caller(self._protection.accounts, host)
        return ClientConnection(accepted, self._protection.tls, caller, self._service)

    def _local(self, accepted: socket.socket) -> ClientConnection:
        return ClientConnection(accepted, PLAIN, Caller(None, ""), self._service)

    @property
    def calls_under_way(self) -> int:
        """Number of calls in progress."""
        return len(self._calls.all())

    @property
    def calls_at_work(self) -> int:
        """Number of calls that do not wait for their client."""
        return sum(call.waiting_since is None for call in self._calls.all())

    @property
    def calls_ended(self) -> int:
        """Number of calls that have ended."""
        return self._calls.ended

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._connections) + len(self._local_ones)

    def stats(self) -> dict[str, Any]:
        """Return figures of the clients' calls, ready for JSON."""
        return {
            "connections": self.connections,
            "calls": self.calls_under_way,
            "receivedBytes": self._service.received,
            "callFailures": self._failures.to_json(),
        }

    def drain(self, seconds: float) -> bool:
        """Refuse new calls, and wait until none is at work; return whether that happened.

        Calls that wait for their client are not waited for.
        """
        self._calls.is_stopping = True
        return self._calls.wait_until(
            lambda calls: all(call.waiting_since is not None for call in calls), seconds
        )

    def end_calls(self) -> None:
        """Refuse new calls, and end those in progress."""
        self._calls.is_stopping = True
        for connections in (self._connections, self._local_ones):
            connections.end(_CUT_SECONDS)
        self._calls.wait_until(lambda calls: not calls, _CUT_SECONDS)

    def close(self) -> None:
        """End all calls and stop listening."""
        self.end_calls()
        for listener in self._listeners:
            listener.close(_CUT_SECONDS)
        for connections in (self._connections, self._local_ones):
            connections.close(_CUT_SECONDS)
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)


def _endpoint(bound: socket.socket, tls: ServerTls) -> Endpoint:
    host, port = bound.getsockname()[:2]
    return Endpoint(TCP if tls.context is None else TLS, host, port)


def _most_connections(streams: int) -> int:
    """Return the number of connections above which idle ones are closed.

    At least half of the open files stay free for the store.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = streams * _CONNECTIONS_PER_STREAM
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)


def _listen_on_path(path: str) -> socket.socket:
    """Return a listening unix socket that only this user can reach.

    Raises:
        OptionError: its folder is open to others, or the path is something other than a socket.
        ServiceError: another process listens on it, or it cannot be bound.
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        raise OptionError(f"The folder {folder} of listenSocket cannot be used: {error}.") from None
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise OptionError(
            f"The folder {folder} of listenSocket must be accessible to its owner only (mode "
            "0700): anyone who reaches the socket can write to the store. Run chmod 700, or "
            "use another folder."
        )
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ServiceError(
            f"The store process cannot listen on {path}: {error}. Set another listenSocket."
        ) from None
    return listening


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed process left behind."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OptionError(f"listenSocket {path} exists and is not a socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise ServiceError(f"Another process listens on {path}. Stop it, or set another listenSocket.")
