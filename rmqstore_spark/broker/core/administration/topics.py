"""Administers topics (upstream: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients
from rmqstore_spark.broker.core.consumers.offsets import NamedQueue
from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.broker.core.subscriptions import Subscription
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import require_clients_topic
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    StoreWriteError,
    TopicNotFoundError,
)
from rmqstore_spark.layout.constants import (
    SYSTEM_TOPICS,
    is_system_topic,
    is_topic_of_group,
    is_writable_topic,
)

_log = logging.getLogger(__name__)

_MOST_ENTRIES: Final = 10_000
"""Most entries of a queue in an answer."""


class WantedTopic(NamedTuple):
    """What an administrator wants a topic to be."""

    name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool


class StoredQueue(NamedTuple):
    """A queue's first offset, one past its last, and when its last message was stored; 0: empty."""

    queue: NamedQueue
    least: int
    most: int
    last_stored: int


class EntriesAsked(NamedTuple):
    """Which entries of a queue are wanted; and whose subscription to its topic, "" for none."""

    queue: NamedQueue
    first: int
    most: int
    group: str


class QueueEntry(NamedTuple):
    """An entry of a queue."""

    place: int
    size: int
    code: int


class Entries(NamedTuple):
    """Entries of a queue.

    Attributes:
        least, most: the queue's first offset, and one past its last.
        entries: those that are wanted; None if the queue does not have the first of them.
        subscription: of the group; None if it is not connected, or does not consume the topic.
    """

    least: int
    most: int
    entries: Sequence[QueueEntry] | None
    subscription: Subscription | None


class TopicAdministration:
    """Administers topics. What reads queues belongs to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected.
        reader: of its records.
    """

    def __init__(
        self, store: StoreWriter, catalog: Catalog, clients: Clients, reader: QueueReader
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clients = clients
        self._reader = reader

    # ---- changes

    def update(self, wanted: WantedTopic, peer: str) -> None:
        """Create or change a topic.

        Args:
            wanted: its settings.
            peer: address of who wants it.

        Raises:
            Refusal: it cannot be, or not here.
        """
        self._catalog.require_master()
        name, *_, order = wanted
        if not is_writable_topic(name):
            raise Refusal(
                Reason.WRONG, f"The topic[{escaped(name)}] is conflict with system topic."
            )
        settings = {
            "read_queue_nums": wanted.read_queue_nums,
            "write_queue_nums": wanted.write_queue_nums,
            "perm": wanted.perm,
        }
        try:
            if name in self._store.topics:
                self._store.update_topic(name, order=order, **settings)
            else:
                self._store.create_topic(name, order=order, **settings)
        except OptionError as error:
            raise Refusal(Reason.WRONG, str(error)) from error
        except (RefusedError, StoreWriteError) as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error
        _log.info(
            "%s set the topic %s: readQueueNums=%d, writeQueueNums=%d, perm=%d, order=%s.",
            escaped(peer), name, *settings.values(), str(order).lower(),
        )  # fmt: skip

    def require_deletable(self, name: str) -> str:
        """Return the name of a topic that may be deleted.

        Raises:
            Refusal: it may not be deleted, or not here.
        """
        self._catalog.require_master()
        try:
            require_clients_topic(name)
        except OptionError as error:
            raise Refusal(Reason.WRONG, str(error)) from error
        return name

    def delete(self, named: Mapping[str, str]) -> None:
        """Delete topics together. Those that do not exist are left out, as RocketMQ does it.

        Args:
            named: the address of who wants each deleted, by its name.

        Raises:
            Refusal: they could not be deleted; nothing has changed.
        """
        there = [name for name in named if name in self._store.topics]
        try:
            if there:
                self._store.delete_topics(there)
        except TopicNotFoundError:  # another thread deleted one of them
            for name in there:
                with suppress(TopicNotFoundError):
                    self._store.delete_topic(name)
        except (RefusedError, StoreWriteError) as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error
        for name in there:
            _log.info("%s deleted the topic %s.", escaped(named[name]), name)

    # ---- questions

    def config(self, name: str) -> dict[str, Any]:
        """Return the settings of a topic, as a broker's file has them.

        Raises:
            Refusal: there is none.
        """
        found = self._catalog.topics().get(name)
        if found is None:
            raise Refusal(Reason.NO_TOPIC, f"No topic in this broker. topic: {shown(name)}")
        return found

    def of_the_system(self) -> list[str]:
        """Return the topics that mqadmin leaves out of an export of topics."""
        config = self._store.config
        own = (
            name for name in self._catalog.topics()
            if is_system_topic(name) and not is_topic_of_group(name)
        )  # fmt: skip
        return sorted({*SYSTEM_TOPICS, config.broker_cluster_name, config.broker_name, *own})

    def ranges(self, name: str) -> list[StoredQueue]:
        """Return where the queues of a topic begin and end.

        Raises:
            Refusal: there is no such topic.
        """
        topic = self._store.topics.get(name)
        if topic is None:
            raise Refusal(Reason.NO_TOPIC, f"topic[{escaped(name)}] not exist")
        return [self._range(NamedQueue(name, number)) for number in range(topic.write_queue_nums)]

    def _range(self, queue: NamedQueue) -> StoredQueue:
        least, most = self._reader.range(*queue)
        last = self._reader.stored_at(*queue, most - 1) if most > least else 0
        return StoredQueue(queue, least, most, max(last, 0))

    def entries(self, asked: EntriesAsked) -> Entries:
        """Return entries of a queue.

        Raises:
            Refusal: there is no such queue.
        """
        name, queue_id = asked.queue
        topic = self._store.topics.get(name)
        if topic is None or queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise Refusal(Reason.WRONG, f"{queue_id}@{escaped(name)} is not exist!")
        least, most = self._reader.range(name, queue_id)
        online = self._clients.group(asked.group)
        subscription = None if online is None else online.subscription(name)
        if not least <= asked.first < most:
            return Entries(least, most, None, subscription)
        count = min(asked.most, _MOST_ENTRIES)
        entries = self._reader.entries(name, queue_id, asked.first, count)
        columns = (entries[field].tolist() for field in ("physicalOffset", "size", "tagsCode"))
        return Entries(least, most, [*map(QueueEntry, *columns)], subscription)
