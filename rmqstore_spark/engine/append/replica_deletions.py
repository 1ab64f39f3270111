"""Deletes topics at a slave that its master has deleted: their records stay in the log.

The log does not say that a topic was deleted. The slave's own record of deletions keeps the older
records out of the queues, also those that are yet to arrive, and in rebuilds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.layout.constants import topic_fault

_log = logging.getLogger(__name__)


class ReplicaDeletions:
    """The deletions of topics that a slave takes over. Used by one thread at a time.

    Args:
        store: the open store.
        appender: appends to the log.
        dispatcher: writes its queues.
    """

    def __init__(self, store: OpenStore, appender: Appender, dispatcher: Dispatcher) -> None:
        self._store = store
        self._appender = appender
        self._dispatcher = dispatcher

    def remaining(self) -> set[str]:
        """Return deleted topics with queues: of later records, which may be of a new topic."""
        return self._store.deleted.ends.keys() & self._store.queues.ranges().keys()

    def take(self, ends: Mapping[str, int]) -> None:
        """Delete the records of topics up to physical offsets, which the log may not have yet.

        The offsets of consumer groups in these topics are removed. The topics stay in the table.
        What is deleted already, has expired, or belongs to a topic of the store's own is left out.

        Args:
            ends: the physical offset, by topic.

        Raises:
            CorruptStoreError: the file of offsets is damaged, and so is its backup.
            RefusedError: the store is closing, or there is no room for queues.
            StoreWriteError: a file could not be written or removed. Repeat the call.
        """
        store = self._store
        least = store.log.min_offset
        new = {
            topic: end
            for topic, end in ends.items()
            if end > max(least, store.deleted.end(topic)) and topic_fault(topic) is None
        }
        if not new:
            return
        with self._appender.appending(patient=True):
            self._dispatcher.drain_or_refuse()  # refuses, rather than waits for who lacks room
            with store.deleted.copying, store.deleted.adding(new):
                self._dispatcher.drain_or_refuse()
                for topic, end in new.items():
                    if dropped := store.queues.drop_older(topic, end):
                        _log.info(
                            "The master deleted the topic %s. Its messages left %d queues.",
                            topic, dropped,
                        )  # fmt: skip
                store.consumer_offsets.forget(new)
                store.queue_ends.forget(new)
