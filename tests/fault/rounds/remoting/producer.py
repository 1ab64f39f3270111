"""A producer of transactional messages on RocketMQ's protocol, in a process that is killed.

    python -m tests.fault.rounds.remoting.producer NAME_SERVER TOPIC 0 --transactional

These are arguments as RocketMQ's clients get them.
For each line that it reads it sends a half message, says `half BODY` once that is acknowledged,
ends the transaction, and says `ended BODY`; `failed BODY` if it was not acknowledged. A body with
"commit" in it is committed, others are rolled back: at once, or, with "late" in it, when the broker
asks. With "held" in it, the producer says `held BODY` before it does that, and waits for the line
`release BODY`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from tests.broker.transactions.halves import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    alive,
    answer_to,
    end,
    half,
    half_of,
)
from tests.fault.process import say
from tests.fault.rounds.remoting.application import broker_of

_GROUP: Final = "pg"
_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.2


def _outcome(body: str) -> int:
    return COMMIT if "commit" in body else ROLLBACK


class _Producer:
    """Sends half messages, and answers what the broker asks about them."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._client = RemotingClient(address, service=self)
        self._open: set[str] = set()
        self._released = defaultdict[str, asyncio.Event](asyncio.Event)
        self._answering: set[asyncio.Task[None]] = set()

    async def beat(self) -> None:
        """Tell the broker of the producer, on each connection that there is."""
        while True:
            with suppress(ServiceError):
                await self._client.ask(alive(f"producer-{os.getpid()}", _GROUP), _ANSWER_S)
            await asyncio.sleep(_PAUSE_S)

    async def work(self, bodies: asyncio.Queue[str]) -> None:
        """Send what is asked for, one after the other."""
        while True:
            body = await bodies.get()
            self._open.add(body)
            is_done = await self._transact(body)
            self._open.discard(body)
            say("ended" if is_done else "failed", body)

    def release(self, body: str) -> None:
        """Continue with a message."""
        self._released[body].set()

    async def _transact(self, body: str) -> bool:
        try:
            sent = await self._client.ask(half(body.encode(), b=self._topic), _ANSWER_S)
        except ServiceError:
            await asyncio.sleep(_PAUSE_S)
            return False
        if sent.code != ResponseCode.SUCCESS:
            return False
        say("half", body)
        if "late" in body:
            return True
        await self._hold(body)
        with suppress(ServiceError):  # the broker asks
            await self._client.tell(end(sent, _outcome(body)))
        return True

    async def _hold(self, body: str) -> None:
        if "held" in body:
            say("held", body)
            await self._released[body].wait()

    async def _answer(self, request: Request) -> None:
        record, _ = half_of(request.command)
        (body,) = string_array(record.body).to_pylist()
        is_open = body in self._open
        if not is_open:
            await self._hold(body)
        with suppress(ServiceError):  # the broker asks again
            outcome = UNKNOWN if is_open else _outcome(body)
            await self._client.tell(answer_to(request.command, outcome))

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        """What the broker asks."""
        for request in requests:
            task = asyncio.create_task(self._answer(request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            request.drop()

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""


async def _work(address: str, topic: str) -> None:
    producer, bodies = _Producer(address, topic), asyncio.Queue[str]()
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    tasks = [asyncio.create_task(producer.beat()), asyncio.create_task(producer.work(bodies))]
    say("ready")
    while line := await lines.readline():
        first, *more = line.decode().split()
        if more:
            producer.release(*more)
        else:
            bodies.put_nowait(first)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(_work(broker_of(sys.argv[1], sys.argv[2]), sys.argv[2]))
