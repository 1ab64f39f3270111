"""Record a stream's progress as the offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from rmqstore_spark.datasource.offsets import Offsets, QueueKey
from rmqstore_spark.datasource.spec import AnySource, SourceBroker

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.datasource.pulled.store import PulledStore

__all__ = ["GroupProgress"]


class GroupProgress:
    """The offsets of one consumer group at some store processes and brokers.

    Args:
        group: its name.
        stores: their stores, and the brokers, which stay open. A store with replicas is given up as
            soon as a read of it would be.
    """

    def __init__(self, group: str, stores: Sequence[AnySource]) -> None:
        self._group = group
        self._clients: dict[str, StoreClient] = {}
        self._brokers: dict[str, PulledStore] = {}
        for of in stores:
            if isinstance(of, SourceBroker):
                self._brokers[of.store.broker_name] = of.store
            else:
                self._clients[of.store.broker_name] = of.spec.client()
        self._recorded: dict[QueueKey, int] = {}

    def record(self, reached: Offsets, silent: AbstractSet[str]) -> None:
        """Move the offsets of the group to those of a finished micro-batch.

        Args:
            reached: the next offsets to read. Queues whose offsets have not changed since the last
                call are not sent again.
            silent: brokers that do not answer: they are told at a later call.

        Raises:
            ServiceError: a store process or broker cannot be reached.
            StoreWriteError: a store could not write the offsets.
        """
        moved: dict[str, dict[str, dict[int, int]]] = {}
        clients: dict[str, StoreClient | PulledStore] = {**self._clients, **self._brokers}
        for key, mark in reached.items():
            if key.broker in silent or key.broker not in clients:
                continue
            if self._recorded.get(key) != mark.next:
                queues = moved.setdefault(key.broker, {}).setdefault(key.topic, {})
                queues[key.queue_id] = mark.next
        for broker, offsets in moved.items():
            clients[broker].commit_offsets(self._group, offsets)
            self._recorded.update(
                (QueueKey(broker, topic, number), offset)
                for topic, queues in offsets.items()
                for number, offset in queues.items()
            )

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
