"""Listens for connections, and ends those that are idle, slow, or hold too much."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import Final

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.addresses import address_text
from rmqstore_spark.remoting.connection import Connection, Request, Service
from rmqstore_spark.remoting.limits import Limits
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.remoting.turns import Turns

__all__ = ["RemotingServer"]

_BACKLOG: Final = 1024
_LOOKS: Final = 4
"""How often a connection is looked at within the shortest of its times."""


class RemotingServer:
    """A server of RocketMQ's protocol. Use it in the thread of a running event loop.

    Args:
        service: handles the requests of all connections.
        limits: the bounds.

    Attributes:
        log: for lines about the other ends.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.log = PeerLog(logging.getLogger(__name__))
        self._service = service
        self._turns: Turns[Request] = Turns(service, limits.group)
        self._limits = limits
        self._connections: dict[Connection, None] = {}
        self._held = 0
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

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
            self._server = await loop.create_server(
                lambda: Connection(self._service, self._turns, self._limits, self), host, port,
                backlog=_BACKLOG,
            )  # fmt: skip
        except OSError as error:
            where = address_text((host, port))
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
            raise ServiceError(
                f"Nothing can listen on {where}: {reason}. Choose an address of this machine and a "
                "port that no other process uses."
            ) from error
        self._looking = asyncio.create_task(self._look())
        return address_text(self._server.sockets[0].getsockname())

    async def close(self) -> None:
        """Stop listening, and close all connections; what was sent on them is written first."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        until = asyncio.get_running_loop().time() + self._limits.write_seconds
        while self._connections and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    # ---- for connections

    def admit(self, connection: Connection) -> bool:
        """Add a new connection; return False if there are too many."""
        if len(self._connections) >= self._limits.connections:
            self.log.warning(
                connection.peer, "%s was turned away: there are %d connections, as many as may be.",
                escaped(connection.peer), len(self._connections),
            )  # fmt: skip
            return False
        self._connections[connection] = None
        return True

    def note(self, more: int) -> None:
        """Take note that connections hold more, or fewer, bytes."""
        self._held += more
        if more > 0:
            self._check_held()

    def remove(self, connection: Connection) -> None:
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
            self._check_held()

    def _check_held(self) -> None:
        """End the connection that holds most if all of them hold too much."""
        if self._held <= self._limits.held:
            return
        # What a socket has taken since is not told: only the count says.
        self._held += sum(connection.count() for connection in self._connections)
        if self._held <= self._limits.held or not self._connections:
            return
        largest = max(self._connections, key=lambda each: each.holds)
        self.log.warning(
            largest.peer, "The connection of %s was ended: it holds %d bytes, and all connections "
            "together more than %d.", escaped(largest.peer), largest.holds, self._limits.held,
        )  # fmt: skip
        largest.abort()
