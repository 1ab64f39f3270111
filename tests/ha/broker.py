"""A broker of the tests, which answers its slaves what it was given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.server import RemotingServer

__all__ = ["Broker", "answering"]

FROM_THE_BEGINNING = b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"0"}}'


class Broker:
    """Answers requests of a slave with given bodies; `asked` has the codes of the requests."""

    def __init__(self, bodies: Mapping[Any, bytes]) -> None:
        self.bodies: dict[int, bytes] = {
            RequestCode.GET_BROKER_RUNTIME_INFO: FROM_THE_BEGINNING,
            **bodies,
        }
        self.asked: list[int] = []

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            command = request.command
            self.asked.append(command.code)
            body = self.bodies.get(command.code)
            if body is None:
                request.reply(command.answer(ResponseCode.SYSTEM_ERROR, "not here"))
            else:
                request.reply(command.answer(body=body))


@contextmanager
def answering(broker: Broker) -> Iterator[str]:
    """Let a broker answer; its address is the value."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[RemotingServer, str]:
        server = RemotingServer(broker, Limits())
        return server, await server.start(bound_port("127.0.0.1", 0))

    server, address = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
