"""A broker whose answers are changed on their way: what a hostile or damaged one sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.server import RemotingServer
from tests.support.processes.loops import in_thread

__all__ = ["Change", "tampering"]

Change = Callable[[Command, Command], Command | None]
"""Gets a request and its answer, and returns what is answered instead; None ends the connection."""


@contextmanager
def tampering(broker: str, change: Change) -> Iterator[str]:
    """Stand between clients and a broker; the address is the value of the context."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with await RemotingClient.connect(broker) as client:
            server = RemotingServer(_Between(client, change), Limits())
            yield await server.start(bound_port("127.0.0.1", 0))
            await server.close()

    with in_thread(serving) as address:
        yield address


class _Between:
    def __init__(self, client: RemotingClient, change: Change) -> None:
        self._client = client
        self._change = change
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            task = asyncio.get_running_loop().create_task(self._forward(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    async def _forward(self, request: Request) -> None:
        asked = request.command
        given = await self._client.ask(Command(asked.code, dict(asked.ext), asked.body))
        told = self._change(asked, asked.answer(given.code, given.remark, given.ext, given.body))
        if told is None:
            request.drop()
            request.connection.abort()
        else:
            request.reply(told)
