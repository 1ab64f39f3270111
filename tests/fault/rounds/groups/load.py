"""What runs while members of a group fail: producers, a consumer, and a writer of Spark's batches.

Each message is sent once, to one member, whether it leads or not: what was not acknowledged may be
in the log, but once. A batch is committed again until it is acknowledged, as Spark does.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError, ServiceError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import message
from tests.broker.clients.real_client import RealClient
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

ROWS: Final = 200
"""Of a batch."""
BATCHES: Final = "batches"
"""Their topic."""
_ANSWER_S: Final = 4.0
_PAUSE_S: Final = 0.1
_GAP_S: Final = 0.01
_AT_ONCE: Final = 5
_BETWEEN_S: Final = 0.5
_STAGED_S: Final = 10.0
_CONSUMED_S: Final = 180.0
"""A broker of RocketMQ counts a client twice whose connection ended while its heartbeat waited, and
gives it half of the queues, until `ConsumerManager.scanNotActiveChannel` forgets it after 120 s."""


class Producer:
    """Sends messages to one member, one after the other.

    Args:
        address: where the member listens for clients.
        queue: where they go.
        over: when to end.

    Attributes:
        acknowledged: their texts.
    """

    def __init__(self, address: str, queue: int, over: threading.Event) -> None:
        self.acknowledged: list[str] = []
        self._address = address
        self._queue = queue
        self._over = over

    async def run(self) -> None:
        """Send until it is over."""
        number = 0
        async with RemotingClient(self._address) as client:
            while not self._over.is_set():
                text = f"message-{self._queue}-{number}-{'x' * (number * 37 % 2000)}"
                number += 1
                if await self._send(client, text):
                    self.acknowledged.append(text)
                    await asyncio.sleep(_GAP_S)
                else:
                    await asyncio.sleep(_PAUSE_S)

    async def _send(self, client: RemotingClient, text: str) -> bool:
        try:
            answer = await client.ask(message(text.encode(), queue=self._queue), _ANSWER_S)
        except ServiceError:
            return False
        return answer.code == ResponseCode.SUCCESS


class JavaClient:
    """A producer and a consumer of RocketMQ, which find the leader by the name server.

    Args:
        start: starts the process.

    Attributes:
        acknowledged: the texts of what was.
        consumed: texts.
    """

    def __init__(self, start: Callable[[], RealClient]) -> None:
        self.acknowledged: list[str] = []
        self.consumed: set[str] = set()
        self._start = start
        self._client = start()
        self._read = self._sent = self._ended = 0

    async def run(self, over: threading.Event) -> None:
        """Let it send until it is over."""
        while not over.is_set():
            self.note()
            while self._sent < self._ended + _AT_ONCE:
                self._client.send(f"java-{self._sent}")
                self._sent += 1
            await asyncio.sleep(_PAUSE_S)

    def note(self) -> None:
        """Note what it has said since; start it again if no member could tell it of the topic."""
        if self._client.process.poll() is not None:
            self._client.kill()
            self._client, self._read, self._ended = self._start(), 0, self._sent
        lines = self._client.said[self._read :]
        self._read += len(lines)
        for line in lines:
            what, *words = line.split()
            if what == "sent":
                self.acknowledged.append(words[1])
            elif what == "got":
                self.consumed.add(words[0])
            self._ended += what in ("sent", "failed")

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Let it consume all of some texts; return those that do not come in time."""

        def has_all() -> bool:
            self.note()
            return self.consumed.issuperset(texts)

        with suppress(AssertionError):
            eventually(has_all, _CONSUMED_S)
        return [text for text in texts if text not in self.consumed]

    def close(self) -> None:
        """End it."""
        self._client.kill()


class BatchWriter:
    """Commits batches, each until it is acknowledged, at whichever of our members leads.

    Args:
        endpoints: of our members.
        over: when to end.

    Attributes:
        committed: how many were.
    """

    def __init__(self, endpoints: Sequence[str], over: threading.Event) -> None:
        self.committed = 0
        self._endpoints = endpoints
        self._over = over

    def run(self) -> None:
        """Commit until it is over."""
        chance = random.Random(0)
        while not self._over.is_set():
            endpoint = chance.choice(self._endpoints)
            with (
                suppress(RmqStoreError),
                StoreClient(endpoint, retries=0, connect_s=1, timeout_s=_STAGED_S) as client,
            ):
                while client.stats()["state"] == "RUNNING" and not self._over.is_set():
                    self._commit(client)
            self._over.wait(_PAUSE_S)

    def _commit(self, client: StoreClient) -> None:
        rows = [text.encode() for text in texts_of(self.committed)]
        with client.stage_stream() as stream:
            stream.send(block_of(rows, BATCHES))
            info = stream.finish()
        client.commit(CommitRequest(WriterId.of_batch("rounds", self.committed), (info,)))
        self.committed += 1
        self._over.wait(_BETWEEN_S)


def texts_of(batch: int) -> list[str]:
    """The rows of a batch."""
    return [f"row-{batch}-{row}" for row in range(ROWS)]


class Load:
    """All of them, in threads, until `end`.

    Args:
        addresses: where the members listen for clients.
        endpoints: of ours.
        java: RocketMQ's client, if there is one.
    """

    def __init__(
        self, addresses: Sequence[str], endpoints: Sequence[str], java: JavaClient | None
    ) -> None:
        self._over = threading.Event()
        self._producers = [Producer(at, queue, self._over) for queue, at in enumerate(addresses)]
        self.java = java
        self.batches = BatchWriter(endpoints, self._over)
        self._pool = ThreadPoolExecutor(2)
        self._work: list[Future[None]] = [self._pool.submit(lambda: asyncio.run(self._send()))]
        if endpoints:
            self._work.append(self._pool.submit(self.batches.run))

    async def _send(self) -> None:
        java = [self.java.run(self._over)] if self.java else []
        await asyncio.gather(*(producer.run() for producer in self._producers), *java)

    @property
    def texts(self) -> list[str]:
        """The texts of all messages that were acknowledged; each was sent once."""
        lists = [each.acknowledged for each in self._producers]
        if self.java is not None:
            lists.append(self.java.acknowledged)
        return [text for each in lists for text in list(each)]

    @property
    def acknowledged(self) -> int:
        """How many messages were, with those of batches."""
        return len(self.texts) + ROWS * self.batches.committed

    def require_running(self) -> None:
        """Raise what one of them failed with."""
        for work in self._work:
            if work.done():
                work.result()

    def end(self) -> None:
        """End all but the consumer, and raise what failed."""
        self.close()
        self.require_running()

    def close(self) -> None:
        """End all but the consumer."""
        self._over.set()
        self._pool.shutdown()
