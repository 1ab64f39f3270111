"""Servers and raw sockets for tests of the server and the client."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import uvloop

from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.server import RemotingServer
from tests.remoting.reading import read_frames
from tests.support.waiting import PATIENCE

__all__ = [
    *("BIG", "ECHO", "HOLD", "Peer", "TestService", "listening", "request", "run", "talking"),
    "until",
]

ECHO, HOLD, BIG = 1, 2, 3


class TestService:
    """Answers ECHO at once, HOLD when the test does so, and BIG with a megabyte.

    Attributes:
        groups: how many requests came together, each time.
        held: requests that wait.
        connections: that are open.
    """

    __test__ = False

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.held: list[Request] = []
        self.connections: list[RemotingConnection] = []
        self.closed_count = 0

    def opened(self, connection: RemotingConnection) -> None:
        self.connections.append(connection)

    def requests(self, requests: Sequence[Request]) -> None:
        self.groups.append(len(requests))
        for request in requests:
            command = request.command
            if command.code == HOLD:
                self.held.append(request)
            elif command.is_one_way:
                request.drop()
            elif command.code == BIG:
                request.reply(command.answer(body=bytes(1 << 20)))
            else:
                request.reply(command.answer(ResponseCode.SUCCESS, body=command.body))

    def closed(self, connection: RemotingConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self.closed_count += 1


@asynccontextmanager
async def listening(service: Any, **limits: Any) -> AsyncIterator[str]:
    """Run a server on loopback; its address is the value of the context."""
    server = RemotingServer(service, Limits(**limits))
    try:
        yield await server.start(bound_port("127.0.0.1", 0))
    finally:
        await server.close()


@asynccontextmanager
async def talking(service: Any, clients: Any = None) -> AsyncIterator[RemotingClient]:
    """Run a server, and give a client of it.

    Args:
        service: the server's.
        clients: the client's own service.
    """
    async with listening(service) as address:
        client = await RemotingClient.connect(address, service=clients)
        yield client
        client.close()


class Peer:
    """The other end, by hand: it sends any bytes, and reads when it wants."""

    opened: ClassVar[list[Peer]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append(self)
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()

    @classmethod
    async def connect(cls, address: str, tls: ssl.SSLContext | None = None) -> Peer:
        host, port = address.split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 16, ssl=tls))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def send_some(self, data: bytes) -> None:
        """Send without waiting for the other end."""
        self._writer.write(data)

    async def commands(self, count: int) -> list[Command]:
        """Read until there are some commands."""
        found: list[Command] = []
        while len(found) < count:
            data = await asyncio.wait_for(self._reader.read(1 << 16), 30)
            assert data, f"closed after {len(found)} commands"
            found += read_frames(data, self._frames)
        return found

    async def ended(self) -> bool:
        """Read to the end; returns whether it came in time."""
        with suppress(ConnectionError):
            while await asyncio.wait_for(self._reader.read(1 << 20), 30):
                pass
        return True

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Go without a word."""
        self._writer.transport.abort()


def run(test: Coroutine[Any, Any, object]) -> None:
    """Run a test in an event loop as the server's, and close the peers that it left open."""

    async def whole() -> None:
        try:
            await test
        finally:
            while Peer.opened:
                Peer.opened.pop().reset()
            await asyncio.sleep(0)

    uvloop.run(whole())


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def request(code: int, body: bytes = b"", opaque: int = 1) -> bytes:
    """A request as bytes."""
    return encode_frame(Command(code, body=body, opaque=opaque))
