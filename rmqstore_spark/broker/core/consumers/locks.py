"""Locks of queues: one consumer of a group at a time consumes a queue in order.

Upstream: RebalanceLockManager.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.store import StoreWriter

_SECONDS: Final = 60.0
"""A lock that was not renewed for this time is free."""
_MOST_LOCKS: Final = 200_000


class LockedQueue(NamedTuple):
    """A queue, as a consumer names it.

    Attributes:
        broker_name: the broker that it means.
        topic, queue_id: the queue.
    """

    broker_name: str
    topic: str
    queue_id: int


class QueueLocks(NamedTuple):
    """What a consumer wants locked or unlocked.

    Attributes:
        group: its group.
        client_id: its name.
        queues: each once. Those that this broker does not have are left out.
    """

    group: str
    client_id: str
    queues: tuple[LockedQueue, ...]


class _Lock(NamedTuple):
    client_id: str
    since: float


class Locks:
    """The locks of all groups. Used by one thread.

    Args:
        store: the store.
        clock: seconds of a clock that only goes forward.
    """

    def __init__(self, store: StoreWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._topics = store.topics
        self._broker_name = store.config.broker_name
        self._clock = clock
        self._locks: dict[tuple[str, LockedQueue], _Lock] = {}

    def lock(self, asked: QueueLocks) -> list[LockedQueue]:
        """Lock queues for a consumer, or renew its locks.

        Returns:
            Those that it has now.

        Raises:
            Refusal: there are too many locks.
        """
        queues, now = self._own(asked.queues), self._clock()
        if len(self._locks) + len(queues) > _MOST_LOCKS:
            self._forget_old(now)
            if len(self._locks) + len(queues) > _MOST_LOCKS:
                raise Refusal(Reason.BUSY, f"there are {_MOST_LOCKS} locks, the maximum")
        held = []
        for queue in queues:
            lock = self._locks.get((asked.group, queue))
            is_free = lock is None or now - lock.since > _SECONDS
            if is_free or (lock is not None and lock.client_id == asked.client_id):
                self._locks[asked.group, queue] = _Lock(asked.client_id, now)
                held.append(queue)
        return held

    def unlock(self, asked: QueueLocks) -> None:
        """Unlock queues that a consumer has locked."""
        for queue in self._own(asked.queues):
            lock = self._locks.get((asked.group, queue))
            if lock is not None and lock.client_id == asked.client_id:
                del self._locks[asked.group, queue]

    def _own(self, queues: Iterable[LockedQueue]) -> list[LockedQueue]:
        """Return the queues that this broker has."""
        return [queue for queue in queues if self._has(queue)]

    def _has(self, queue: LockedQueue) -> bool:
        topic = self._topics.get(queue.topic)
        if topic is None or queue.broker_name != self._broker_name:
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    def _forget_old(self, now: float) -> None:
        old = [key for key, lock in self._locks.items() if now - lock.since > _SECONDS]
        for key in old:
            del self._locks[key]
