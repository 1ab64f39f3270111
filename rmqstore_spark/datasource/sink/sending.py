"""Open the stores that a task writes to, find their queues, and send blocks to them.

A stream of blocks is open only while there is something to send. A task may wait for its rows as
long as it likes, but a store process ends idle streams. So a thread ends them properly before that;
the next block begins new ones.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rmqstore_spark.client import PutStream, StageStream, StoreClient
from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.options.sink_table import DeliveryOptions
from rmqstore_spark.datasource.sink.commit import check_write_size
from rmqstore_spark.datasource.sink.encode import BlockToSend
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError, TopicNotFoundError
from rmqstore_spark.produce.queue_choice import Queues

if TYPE_CHECKING:
    from rmqstore_spark.base.types import StageInfo
    from rmqstore_spark.wire.reading import OpenReply


StreamT = TypeVar("StreamT", PutStream, StageStream)


class Sending(ABC, Generic[StreamT]):
    """Sends blocks to stores. A context manager: leaving it drops everything unfinished.

    Args:
        delivery: how much may be under way, and in a commit.
        clients: one for each store.
        idle_seconds: how long a stream may have nothing to send.
    """

    def __init__(
        self, delivery: DeliveryOptions, clients: Sequence[StoreClient], idle_seconds: float
    ) -> None:
        self._delivery = delivery
        self._clients = clients
        self._idle = idle_seconds
        self._streams: dict[int, StreamT] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._last = time.monotonic()
        self._failure: RmqStoreError | None = None
        self._watch = threading.Thread(target=self._end_idle, name="rmqstore-idle", daemon=True)

    def __enter__(self) -> Sending[StreamT]:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._lock:
            for stream in self._streams.values():
                stream.close()

    def send(self, block: BlockToSend) -> None:
        """Send a block.

        Raises:
            RefusedError: the store refuses this block or an earlier one.
            ServiceError: the store process cannot be reached.
        """
        with self._lock:
            self._raise_failure()
            stream = self._streams.get(block.store)
            if stream is None:
                stream = self._streams[block.store] = self._begin(self._clients[block.store])
            stream.send(block.data)
            self._sent(block)
            self._last = time.monotonic()

    def finish(self) -> dict[int, tuple[StageInfo, ...]]:
        """Wait until the stores have received everything; return the stages by store.

        Raises:
            RefusedError, ServiceError: as `send`.
        """
        with self._lock:
            self._raise_failure()
            self._end_all()
            return self._staged()

    @abstractmethod
    def _begin(self, client: StoreClient) -> StreamT:
        """Begin a stream to a store."""

    @abstractmethod
    def _end(self, store: int, stream: StreamT) -> None:
        """Wait until everything that a stream has sent is acknowledged, and end it."""

    def _sent(self, block: BlockToSend) -> None:
        """Count a block that was sent. The lock is held."""

    def _staged(self) -> dict[int, tuple[StageInfo, ...]]:
        return {}

    def _end_all(self) -> None:
        """End all streams. The lock is held."""
        for store, stream in self._streams.items():
            self._end(store, stream)
        self._streams.clear()

    def _end_idle(self) -> None:
        while not self._closed.wait(self._idle / 4):
            with self._lock:
                if self._closed.is_set() or time.monotonic() - self._last < self._idle:
                    continue
                try:
                    self._end_all()
                except RmqStoreError as error:
                    self._failure = error
                    return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class PutSending(Sending[PutStream]):
    """Stores blocks immediately."""

    def _begin(self, client: StoreClient) -> PutStream:
        # At least once: a retry of the task would store the rows twice as well, and more of them.
        return client.put_stream(resends=True, max_in_flight_bytes=self._delivery.max_in_flight)

    def _end(self, _store: int, stream: PutStream) -> None:
        stream.finish()


class StageSending(Sending[StageStream]):
    """Stages blocks until Spark commits."""

    def __init__(
        self, delivery: DeliveryOptions, clients: Sequence[StoreClient], idle_seconds: float
    ) -> None:
        super().__init__(delivery, clients, idle_seconds)
        self._bytes = 0
        self._rows: dict[int, int] = {}
        self._infos: dict[int, tuple[StageInfo, ...]] = {}

    def _begin(self, client: StoreClient) -> StageStream:
        return client.stage_stream(max_in_flight_bytes=self._delivery.max_in_flight)

    def _sent(self, block: BlockToSend) -> None:
        self._rows[block.store] = self._rows.get(block.store, 0) + block.rows
        self._bytes += block.data.nbytes
        check_write_size(self._bytes, self._delivery, "a task of this write")

    def _end(self, store: int, stream: StageStream) -> None:
        info = stream.finish()
        rows = self._rows.pop(store)
        if info.rows != rows:
            raise ServiceError(
                f"The store process at {self._clients[store].endpoint} has staged only "
                f"{info.rows} of {rows} records. See its log."
            )
        self._infos[store] = (*self._infos.get(store, ()), info)

    def _staged(self) -> dict[int, tuple[StageInfo, ...]]:
        return self._infos


_PERM_WRITE: Final = 2


class TargetStores:
    """The stores of a write, and their topics.

    Args:
        clients: one for each endpoint, in the order of the option.
        topic: the topic of all rows, if an option names it.
    """

    def __init__(self, clients: Sequence[StoreClient], topic: str | None) -> None:
        self.clients = clients
        names = () if topic is None else (topic,)
        self.opened: list[OpenReply] = [client.open(names, creates=False) for client in clients]
        self._queues: dict[str, Queues] = {}
        self._check_apart()

    def _check_apart(self) -> None:
        ids = [reply.store_id for reply in self.opened]
        for number, store in enumerate(ids):
            if store in ids[:number]:
                first = self.clients[ids.index(store)].endpoint
                raise OptionError(
                    f"The endpoints {first} and {self.clients[number].endpoint} belong to the "
                    "same store: list each store once."
                )

    def queues(self, topic: str) -> Queues:
        """Return the queues of a topic; the stores are asked only the first time.

        A missing topic is not created yet: the write may still be refused. It gets the store's
        default settings with its first message, or when Spark commits.

        Raises:
            TopicNotFoundError: no store has the topic, or allows writing it.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._ask(topic)
        return found

    def _ask(self, topic: str) -> Queues:
        settings = [
            client.topics_to_write((topic,), opened).get(topic)
            for client, opened in zip(self.clients, self.opened, strict=True)
        ]
        queues = Queues.of(
            [
                found.write_queue_nums if found is not None and found.perm & _PERM_WRITE else 0
                for found in settings
            ]
        )
        if not len(queues):
            where = some(str(client.endpoint) for client in self.clients)
            if any(settings):
                raise TopicNotFoundError(
                    f"Topic {topic!r} is not writable at {where}: it lacks the write permission "
                    "or write queues. Change them with `rmqstore create-topic`."
                )
            raise TopicNotFoundError(
                f"Topic {topic!r} does not exist at {where}. Create it with `rmqstore "
                "create-topic`, or set the store's autoCreateTopicEnable."
            )
        return queues
