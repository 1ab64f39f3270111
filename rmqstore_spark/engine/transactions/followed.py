"""The half messages that wait at a follower, which ends none itself.

Its leader's progress is copied (`tables.followed`), and says how far nothing waits. If nobody tells
it, as a leader of RocketMQ's, or if something waits there, the op messages in the log tell more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.layout.constants import TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqstore_spark.reader.store import Store
from rmqstore_spark.reader.transactions import OpenHalves


class FollowedHalves:
    """The half messages that wait at a follower. Threads can share it.

    Args:
        store: the open store.
        done: returns the physical offset before which all of the log is on disk and in queues.
    """

    def __init__(self, store: OpenStore, done: Callable[[], int]) -> None:
        self._store = store
        self._done = done
        self._open = OpenHalves()
        self._reading = threading.Lock()

    def oldest(self, until: int) -> int | None:
        """Return the physical offset of the oldest half message that may wait; None if none does.

        One that was committed without its op message, when a leader was killed, counts as waiting:
        the next leader completes it.

        Args:
            until: only those before this physical offset are asked for. All of them are in the
                queue.

        Raises:
            RmqStoreError: the store cannot be read.
        """
        end = self._done()
        halves = self._range(TRANS_HALF_TOPIC, end)
        if not halves:
            return None
        entries = self._store.queues.read(TRANS_HALF_TOPIC, 0, halves.start, 1)
        oldest = int(entries["physicalOffset"][0])
        if oldest >= until:
            return oldest
        with self._reading:
            with Store.open(self._store.path) as reader:
                self._open.read_on(reader, halves, self._range(TRANS_OP_HALF_TOPIC, end))
            places = (place for one in self._open.waiting for place in one.places)
            return min(
                (each.physical_offset for each in places if each.queue_offset in halves),
                default=None,
            )

    def _range(self, topic: str, end: int) -> range:
        """Return which offsets of a queue the progress does not count, up to a place of the log."""
        queues, done = self._store.queues, self._store.consumer_offsets.get(TRANS_GROUP, topic, 0)
        stop = queues.first_from(topic, 0, end)
        return range(min(max(queues.min_offset(topic, 0), done), stop), stop)
