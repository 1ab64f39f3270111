"""Holds the connections of its ports, and ends those that are idle or slow."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.connection import (
    RemotingConnection,
    Request,
    RequestService,
    SharedBounds,
)
from rmqstore_spark.remoting.listener import OtherProtocol, PortListener
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.remoting.tls import PLAIN, ServerTls
from rmqstore_spark.remoting.turns import Turns

_LOOKS: Final = 4
"""How often a connection is looked at within the shortest of its times."""


class RemotingServer:
    """A server of RocketMQ's protocol. Use it in the thread of a running event loop.

    Args:
        service: handles the requests of all connections.
        limits: the bounds.
        tls: which connections it accepts.

    Attributes:
        log: for lines about the other ends.
    """

    def __init__(self, service: RequestService, limits: Limits, tls: ServerTls = PLAIN) -> None:
        self.log = PeerLog(logging.getLogger(__name__))
        self._service = service
        self._turns: Turns[Request] = Turns(service, limits.group)
        self._limits = limits
        self._bounds = SharedBounds(limits)
        self._connections: dict[RemotingConnection, None] = {}
        self._tls = tls
        self._listeners: list[PortListener] = []
        self._looking: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Bytes of requests and answers in memory."""
        return self._bounds.room.used + self._bounds.answers.used

    async def start(self, bound: socket.socket, other: OtherProtocol | None = None) -> str:
        """Begin to listen; again for one more port, which shares all bounds.

        Args:
            bound: a socket of `addresses.bound_port`; it is closed here.
            other: another protocol on this port.

        Returns:
            The address that it listens on, as `host:port`.

        Raises:
            ServiceError: another process listens there.
        """
        listener = PortListener(self, self._tls, self._limits, other)
        address = await listener.start(bound)
        self._listeners.append(listener)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return address

    async def close(self) -> None:
        """Stop listening, and close all connections; what was sent on them is written first."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        for listener in self._listeners:
            await listener.close()
        for connection in list(self._connections):
            connection.close()
        until = asyncio.get_running_loop().time() + self._limits.write_seconds
        while self._connections and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    # ---- for its listener and connections

    def new_connection(self) -> RemotingConnection:
        """Return a new connection."""
        return RemotingConnection(self._service, self._turns, self._bounds, self)

    def has_room(self, opening: int, peer: str) -> bool:
        """Return whether there may be one more connection.

        Args:
            opening: connections that have not begun yet.
            peer: address of the other end.
        """
        count = len(self._connections) + opening
        if count >= self._limits.connections:
            self.log.warning(
                peer, "%s was turned away: there are %d connections, the maximum.",
                escaped(peer), count,
            )  # fmt: skip
        return count < self._limits.connections

    def admit(self, connection: RemotingConnection) -> bool:
        """Add a new connection; return False if there are too many."""
        has_room = self.has_room(0, connection.peer)
        if has_room:
            self._connections[connection] = None
        return has_room

    def remove(self, connection: RemotingConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(connection, None)

    # ---- its own

    async def _look(self) -> None:
        limits = self._limits
        shortest = min(limits.idle_seconds, limits.frame_seconds, limits.write_seconds)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, shortest / _LOOKS))
            now = loop.time()
            for connection in list(self._connections):
                connection.check_time(now)
