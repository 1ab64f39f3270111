"""Locks of queues: one consumer of a group at a time consumes a queue in order.

Upstream: RebalanceLockManager.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.layout.constants import is_safe_group_name
from rmqstore_spark.remoting.codec.bodies import dump_body, parse_request
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_NAME
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["Locks"]

_SECONDS: Final = 60.0
"""A lock that was not renewed for this time is free."""
_MOST_LOCKS: Final = 200_000
_MOST_OF_ONE: Final = 16_384


class _Queue(NamedTuple):
    topic: str
    queue_id: int


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
        self._locks: dict[tuple[str, _Queue], _Lock] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of single requests, by code."""
        return {RequestCode.LOCK_BATCH_MQ: self._lock, RequestCode.UNLOCK_BATCH_MQ: self._unlock}

    def _lock(self, _: RemotingConnection, request: Command) -> Command:
        group, client_id, queues = self._read(request)
        now = self._clock()
        if len(self._locks) + len(queues) > _MOST_LOCKS:
            self._forget_old(now)
            if len(self._locks) + len(queues) > _MOST_LOCKS:
                raise RemotingError(
                    ResponseCode.SYSTEM_BUSY, f"there are {_MOST_LOCKS} locks, the maximum"
                )
        held = []
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None or lock.client_id == client_id or now - lock.since > _SECONDS:
                self._locks[group, queue] = _Lock(client_id, now)
                held.append(
                    {
                        "brokerName": self._broker_name,
                        "queueId": queue.queue_id,
                        "topic": queue.topic,
                    }
                )
        return request.answer(body=dump_body({"lockOKMQSet": held}))

    def _unlock(self, _: RemotingConnection, request: Command) -> Command:
        group, client_id, queues = self._read(request)
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]
        return request.answer()

    def _forget_old(self, now: float) -> None:
        old = [key for key, lock in self._locks.items() if now - lock.since > _SECONDS]
        for key in old:
            del self._locks[key]

    def _read(self, request: Command) -> tuple[str, str, list[_Queue]]:
        """Return the group, the client, and those of its queues that this broker has."""
        told = parse_request(request.body)
        group, client_id = told.get("consumerGroup"), told.get("clientId")
        if not isinstance(group, str) or not is_safe_group_name(group):
            raise FrameError("consumerGroup is not a valid name")
        if not isinstance(client_id, str) or not 0 < len(client_id) <= MAX_NAME:
            raise FrameError(f"clientId must be 1 to {MAX_NAME} characters")
        given = told.get("mqSet") or []
        if not isinstance(given, list) or len(given) > _MOST_OF_ONE:
            raise FrameError(f"mqSet must be a list of at most {_MOST_OF_ONE} queues")
        return group, client_id, list(dict.fromkeys(self._queues(given)))

    def _queues(self, given: list[Any]) -> Iterator[_Queue]:
        for told in given:
            if not isinstance(told, dict):
                raise FrameError("mqSet holds more than objects")
            name, queue_id = told.get("topic"), told.get("queueId")
            topic = self._topics.get(name) if isinstance(name, str) else None
            if isinstance(queue_id, str) and queue_id.isascii() and queue_id.isdigit():
                queue_id = int(queue_id[:10])
            if topic is None or type(queue_id) is not int:
                continue
            most = max(topic.read_queue_nums, topic.write_queue_nums)
            if 0 <= queue_id < most and told.get("brokerName") == self._broker_name:
                yield _Queue(topic.name, queue_id)
