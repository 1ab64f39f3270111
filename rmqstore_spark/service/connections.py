"""The connections of this process, and a way to end one.

Arrow Flight in Python can neither limit the time of a stream nor end one from the server's side: a
handler that waits for its client waits for ever. But the connection is a socket of this process,
and a socket can be shut down; Flight then sees what it sees when a client goes away.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

from rmqstore_spark.wire.sockets import own_sockets

__all__ = ["Peer", "cut", "peer_of", "peers"]

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


class Peer(NamedTuple):
    """The other end of a connection.

    Attributes:
        address: `host:port` of a TCP connection; empty for a unix socket.
        process: who connected to a unix socket; 0 where that is unknown, and for TCP.
    """

    address: str
    process: int = 0


def peer_of(flight_peer: str, claimed_process: int) -> Peer:
    """The peer of a call.

    Args:
        flight_peer: as Flight names it: `ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:`.
        claimed_process: which process the client says it is; believed for unix sockets only as far
            as `peers` finds it.
    """
    kind, _, address = flight_peer.partition(":")
    if kind == "unix":
        return Peer("", claimed_process)
    return Peer(unquote(address))


def peers(port: int | None, path: str | None) -> set[Peer]:
    """All that are connected to a port, or to a unix socket, of this process."""
    found = set()
    for connection in _connections(port, path):
        with connection:
            peer = _peer(connection)
            if peer is not None:
                found.add(peer)
    return found


def cut(wanted: set[Peer], port: int | None, path: str | None) -> int:
    """End the connections with some peers; returns how many."""
    count = 0
    for connection in _connections(port, path):
        with connection:
            if _peer(connection) in wanted:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _connections(port: int | None, path: str | None) -> Iterator[socket.socket]:
    """The sockets that were accepted on a port or path, each as a descriptor of its own."""
    for connection in own_sockets():
        if _is_accepted(connection, port, path):
            yield connection
        else:
            connection.close()


def _is_accepted(connection: socket.socket, port: int | None, path: str | None) -> bool:
    try:
        own = connection.getsockname()
        connection.getpeername()  # a listening socket has none
    except OSError:
        return False
    if connection.family == socket.AF_UNIX:
        return path is not None and os.fsdecode(own) == path
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        return port is not None and own[1] == port
    return False


def _peer(connection: socket.socket) -> Peer | None:
    try:
        if connection.family == socket.AF_UNIX:
            return Peer("", _process(connection))
        host, port = connection.getpeername()[:2]
    except OSError:
        return None  # gone by now
    host = host.removeprefix("::ffff:")
    return Peer(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _process(connection: socket.socket) -> int:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return 0
    raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])
