"""Accepts connections on a port or a unix socket, and runs each in a separate thread."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import stat
import threading
import time
from contextlib import suppress
from typing import Final

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.server.connections.connection import ClientConnection, Requests
from rmqstore_spark.wire.transport import PlainTransport, TlsTransport, Transport

__all__ = ["Listener", "listen_on_path", "listen_on_port"]

_log = logging.getLogger(__name__)

_BACKLOG: Final = 512
_STRANGER_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Serves the connections of one listening socket until it is closed.

    A connection without an admitted request is closed after 10 s. When there are too many
    connections, those without a call in progress are closed: untrusted ones first, then the oldest.

    Args:
        listening: the socket.
        requests: handles their requests.
        tls: the TLS context; None for connections without encryption.
        most: maximum number of connections.
    """

    def __init__(
        self,
        listening: socket.socket,
        requests: Requests,
        tls: ssl.SSLContext | None,
        most: int,
    ) -> None:
        self._listening = listening
        self._requests = requests
        self._tls = tls
        self._most = most
        self._lock = threading.Lock()
        self._connections: dict[ClientConnection, threading.Thread] = {}
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"rmqstore-{name}", daemon=True)
            for work, name in ((self._accept, "accept"), (self._tidy, "tidy"))
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._connections)

    def close(self, seconds: float) -> None:
        """Stop listening, and close all connections.

        Args:
            seconds: how long to wait for their threads.
        """
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(seconds)
        self.end_connections(seconds)

    def end_connections(self, seconds: float) -> None:
        """Close all connections. Others may still be opened.

        Args:
            seconds: how long to wait for their threads.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.hang_up()
        for thread in connections.values():
            thread.join(max(deadline - time.monotonic(), 0))

    def _accept(self) -> None:
        is_told = False
        while not self._closed.is_set():
            try:
                accepted, _ = self._listening.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                if error.errno in _NO_ROOM:
                    if not is_told:
                        _log.warning("No more connections can be accepted: %s", error)
                    is_told = True
                    self._end_idle(1)
                    self._closed.wait(_LOOK_SECONDS)
                continue
            is_told = False
            self._end_idle(len(self._connections) + 1 - self._most)
            try:
                self._start(accepted)
            except Exception:  # noqa: BLE001 - nobody could connect any more
                _log.exception("a connection could not be served")
                accepted.close()

    def _start(self, accepted: socket.socket) -> None:
        try:
            transport: Transport = (
                PlainTransport(accepted) if self._tls is None else TlsTransport(accepted, self._tls)
            )
        except OSError:  # the client has disconnected already
            accepted.close()
            return
        connection = ClientConnection(transport, self._requests)
        thread = threading.Thread(
            target=self._run, args=(connection,), name="rmqstore-connection", daemon=True
        )
        with self._lock:  # what is registered can be joined, and is removed after that
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads
                _log.warning("A connection was refused: %s", error)
                accepted.close()
                return
            self._connections[connection] = thread

    def _run(self, connection: ClientConnection) -> None:
        try:
            connection.run()
        except Exception:  # noqa: BLE001 - a bug must end only one connection
            _log.exception("a connection failed")
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _end_idle(self, count: int) -> None:
        """Close connections without a call in progress: untrusted ones first, then the oldest."""
        if count <= 0:
            return
        with self._lock:
            idle = [connection for connection in self._connections if not connection.has_call]
        idle.sort(key=lambda connection: (connection.is_trusted, connection.since))
        for connection in idle[:count]:
            connection.hang_up()

    def _tidy(self) -> None:
        """Close connections that stay untrusted for too long."""
        while not self._closed.wait(_LOOK_SECONDS):
            late = time.monotonic() - _STRANGER_SECONDS
            with self._lock:
                strangers = [c for c in self._connections if not c.is_trusted and c.since < late]
            for connection in strangers:
                connection.hang_up()


def listen_on_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 takes any free one.

    Raises:
        ServiceError: the port is in use, or may not be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        why = (
            "another process listens there already"
            if error.errno == errno.EADDRINUSE
            else error.strerror or str(error)
        )
        raise ServiceError(
            f"The store process cannot listen on {host}:{port}: {why}. Choose another port "
            "(flightPort; 0 takes any free one)."
        ) from None
    return listening


def listen_on_path(path: str) -> socket.socket:
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
        raise OptionError(f"The folder {folder} of flightSocket cannot be used: {error}.") from None
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise OptionError(
            f"The folder {folder} of flightSocket must be accessible to its owner only (mode "
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
            f"The store process cannot listen on {path}: {error}. Set another flightSocket."
        ) from None
    return listening


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed process left behind."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OptionError(f"flightSocket {path} exists and is not a socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise ServiceError(f"Another process listens on {path}. Stop it, or set another flightSocket.")
