"""Record a stream's progress as the offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqstore_spark.datasource.offsets import Offsets, QueueKey
from rmqstore_spark.datasource.spec import AnySource, SourceBroker

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.client.brokers.broker import BrokerClient

__all__ = ["GroupProgress"]


class GroupProgress:
    """The offsets of one consumer group at some store processes and brokers.

    Args:
        group: its name.
        stores: their stores, and the brokers. A store with replicas is given up as soon as a read
            of it would be.
    """

    def __init__(self, group: str, stores: Sequence[AnySource]) -> None:
        self._group = group
        self._clients: dict[str, StoreClient | BrokerClient] = {
            of.store.broker_name: (
                of.spec.master.client() if isinstance(of, SourceBroker) else of.spec.client()
            )
            for of in stores
        }
        self._recorded: dict[QueueKey, int] = {}

    def record(self, reached: Offsets) -> None:
        """Move the offsets of the group to those of a finished micro-batch.

        Args:
            reached: the next offsets to read. Queues whose offsets have not changed since the last
                call are not sent again.

        Raises:
            ServiceError: a store process or broker cannot be reached.
            StoreWriteError: a store could not write the offsets.
        """
        moved: dict[str, dict[str, dict[int, int]]] = {}
        for key, mark in reached.items():
            if self._recorded.get(key) != mark.next and key.broker in self._clients:
                queues = moved.setdefault(key.broker, {}).setdefault(key.topic, {})
                queues[key.queue_id] = mark.next
        for broker, offsets in moved.items():
            self._clients[broker].commit_offsets(self._group, offsets)
        self._recorded.update((key, mark.next) for key, mark in reached.items())

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
