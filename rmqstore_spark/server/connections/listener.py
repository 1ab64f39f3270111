"""Runs each connection in a thread, and ends those of strangers and idle ones."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rmqstore_spark.server.connections.connection import ClientConnection

_log = logging.getLogger(__name__)

_STRANGER_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Connections:
    """The connections of clients, until it is closed.

    A connection without an admitted request is closed after 10 s. When there are too many
    connections, those without a call in progress are closed: untrusted ones first, then the oldest.

    Args:
        made: returns the connection of an accepted socket.
        most: maximum number of connections.
    """

    def __init__(self, made: Callable[[socket.socket], ClientConnection], most: int) -> None:
        self._made = made
        self._most = most
        self._lock = threading.Lock()
        self._connections: dict[ClientConnection, threading.Thread] = {}
        self._closed = threading.Event()
        self._tidying = threading.Thread(target=self._tidy, name="rmqstore-tidy", daemon=True)
        self._tidying.start()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._connections)

    def close(self, seconds: float) -> None:
        """Close all connections.

        Args:
            seconds: how long to wait for their threads.
        """
        self._closed.set()
        self._tidying.join(seconds)
        self.end(seconds)

    def end(self, seconds: float) -> None:
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

    def take(self, accepted: socket.socket) -> None:
        """Serve a connection. Does not wait for anything."""
        self.end_idle(len(self._connections) + 1 - self._most)
        try:
            self._start(accepted)
        except Exception:  # noqa: BLE001 - nobody could connect any more
            _log.exception("a connection could not be served")
            accepted.close()

    def end_idle(self, count: int) -> None:
        """Close connections without a call in progress: untrusted ones first, then the oldest."""
        if count <= 0:
            return
        with self._lock:
            idle = [connection for connection in self._connections if not connection.has_call]
        idle.sort(key=lambda connection: (connection.is_trusted, connection.since))
        for connection in idle[:count]:
            connection.hang_up()

    def _start(self, accepted: socket.socket) -> None:
        try:
            connection = self._made(accepted)
        except OSError:  # the client has disconnected already
            accepted.close()
            return
        thread = threading.Thread(
            target=self._run, args=(connection,), name="rmqstore-connection", daemon=True
        )
        with self._lock:  # what is registered can be joined, and is removed after that
            if self._closed.is_set():
                accepted.close()
                return
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

    def _tidy(self) -> None:
        """Close connections that stay untrusted for too long."""
        while not self._closed.wait(_LOOK_SECONDS):
            late = time.monotonic() - _STRANGER_SECONDS
            with self._lock:
                strangers = [c for c in self._connections if not c.is_trusted and c.since < late]
            for connection in strangers:
                connection.hang_up()


class Listener:
    """Accepts connections on a socket that listens, and hands them to `Connections`.

    Args:
        listening: the socket.
        connections: takes them.
    """

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        self._listening = listening
        self._connections = connections
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="rmqstore-accept", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop listening.

        Args:
            seconds: how long to wait for the thread.
        """
        self._is_closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(seconds)

    def _accept(self) -> None:
        is_told = False
        while not self._is_closed.is_set():
            try:
                accepted, _ = self._listening.accept()
            except OSError as error:
                if self._is_closed.is_set():
                    return
                if error.errno in _NO_ROOM:
                    if not is_told:
                        _log.warning("No more connections can be accepted: %s", error)
                    is_told = True
                    self._connections.end_idle(1)
                    self._is_closed.wait(_LOOK_SECONDS)
                continue
            is_told = False
            self._connections.take(accepted)
