"""The half messages that wait at a follower, which ends none itself.

Its leader's progress is copied (`tables.followed`), and says how far nothing waits. If nobody tells
it, as a leader of RocketMQ's, or if something waits there, the op messages in the log tell more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import StoreAccessError
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
        with self._reading:
            end = self._done()
            halves, ops = self._counting(end)
            if not halves:
                return None
            # It has expired just now if there is none.
            first = self._store.queues.read(TRANS_HALF_TOPIC, 0, halves.start, 1)
            if len(first) and (oldest := int(first["physicalOffset"][0])) >= until:
                return oldest
            with Store.open(self._store.path) as reader:
                if reader.log_end() < end:
                    raise StoreAccessError(
                        f"The files of the log end at {reader.log_end()} for readers, and at {end} "
                        "for this process. The next look at what waits tries again."
                    )
                self._open.read_on(reader, halves, ops)
            places = (place for one in self._open.waiting for place in one.places)
            return min(
                (each.physical_offset for each in places if each.queue_offset in halves),
                default=None,
            )

    def _counting(self, end: int) -> tuple[range, range]:
        """Return the offsets that the progress does not pass, up to a place of the log.

        Returns:
            Those of half messages, and of op messages.
        """
        queues, progress = self._store.queues, self._store.consumer_offsets
        topics = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
        done = [progress.get(TRANS_GROUP, topic, 0) for topic in topics]
        if any(at > queues.max_offset(topic, 0) for topic, at in zip(topics, done, strict=True)):
            done = [0, 0]  # a queue has begun again: it tells of other messages
        halves, ops = (
            range(min(max(queues.min_offset(topic, 0), at), stop), stop)
            for topic, at in zip(topics, done, strict=True)
            for stop in (queues.first_from(topic, 0, end),)
        )
        return halves, ops
