"""Ends the connections to a store process that accepts no more data.

Cancelling a call does not end a write that waits for room in the connection. gRPC ends it when its
bytes are sent, which never happens while the process is stalled.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from rmqstore_spark.client.sockets import own_sockets
from rmqstore_spark.wire.endpoint import UNIX, Endpoint

__all__ = ["hang_up"]


def hang_up(endpoint: Endpoint) -> int:
    """End all connections of this process to an endpoint; return how many there were."""
    addresses = _addresses(endpoint)
    count = 0
    for connection in own_sockets():
        with connection, suppress(OSError):
            if _peer(connection) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _addresses(endpoint: Endpoint) -> set[tuple[str, int]]:
    if endpoint.scheme == UNIX:
        return {(endpoint.path, 0)}
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(address[0]), endpoint.port) for *_, address in found}


def _peer(connection: socket.socket) -> tuple[str, int]:
    peer = connection.getpeername()
    if connection.family == socket.AF_UNIX:
        return os.fsdecode(peer), 0
    return str(peer[0]).removeprefix("::ffff:"), int(peer[1])
