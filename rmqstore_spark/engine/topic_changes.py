"""Changes of topics that clients ask for: who may, which names, and what goes with a topic."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.topics import (
    TopicChange,
    TopicConfig,
    require_clients_topic,
)
from rmqstore_spark.engine.workers import Workers
from rmqstore_spark.layout.constants import is_listed_topic_name, is_safe_topic_name

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TopicChanges:
    """Changes the topics of an open store. Thread-safe.

    Each method raises RefusedError if the store is a slave's, is closed or has failed.

    Args:
        store: the open store.
        workers: its threads.
    """

    def __init__(self, store: OpenStore, workers: Workers) -> None:
        self._store = store
        self._topics = store.topics
        self._workers = workers
        self._admission = workers.admission
        self._appender = workers.appender
        self._flusher = workers.flusher

    def create(self, name: str, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Create a topic. An existing topic stays as it is.

        Args:
            name: its name.
            settings: each of readQueueNums and writeQueueNums defaults to the other. If neither is
                given, the topic gets `defaultTopicQueueNums` queues, or as many as the store
                already holds if that is more.

        Raises:
            OptionError: no broker accepts the name or a number, or the name belongs to the store.
            StoreWriteError: the topic could not be written to disk.
        """
        self._admission.require_master()
        if is_safe_topic_name(name) or not is_listed_topic_name(name):
            require_clients_topic(name)
        read, write = settings.pop("read_queue_nums", None), settings.pop("write_queue_nums", None)
        write = write or read or self._admission.queue_nums([name])[0]
        topic = TopicConfig(name, read or write, write).changed(**settings)
        return self._topics.create_all([topic])[0]

    def create_all(self, names: Sequence[str]) -> None:
        """Create topics with default numbers of queues, as `create` does: all or none."""
        self._admission.require_master()
        for name in names:
            require_clients_topic(name)
        counts = self._admission.queue_nums(names)
        self._topics.create_all([TopicConfig(n, k, k) for n, k in zip(names, counts, strict=True)])

    def update(self, name: str, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Change the given settings of a topic; see `TopicTable.update`."""
        self._admission.require_master()
        require_clients_topic(name)
        return self._topics.update(name, **settings)

    def delete(self, names: Collection[str]) -> None:
        """Delete topics, their queues, and the offsets that consumer groups have in them.

        All of them or none. Their messages stay in the log until they expire.

        Raises:
            TopicNotFoundError: there is no such topic.
            OptionError: a topic belongs to the store.
            RefusedError: the log is busy, too.
            StoreWriteError: the deletion could not be written to disk, or there is no room for
                queues.
        """
        self._admission.require_master()
        for name in names:
            require_clients_topic(name)
        with self._workers.batches.nothing_committed(), self._appender.appending():
            self._admission.require_master()  # the role can have changed since
            self._workers.settle()
            # Flushed: no later record gets a place before that, not even after a crash.
            with self._store.deleted.adding(dict.fromkeys(names, self._flusher.flush())):
                self._topics.delete(names)
                self._store.consumer_offsets.forget(names)
                self._store.queue_ends.forget(names)
            self._store.queues.drop(names)
            self._appender.forget(names)
