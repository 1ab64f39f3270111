"""Open the stores that a task writes to, and find their queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.layout.spans import I4

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.wire.messages import OpenReply

__all__ = ["Queues", "TargetStores"]

_PERM_WRITE: Final = 2


@dataclass(frozen=True)
class Queues:
    """The writable queues of one topic, of all stores, in a fixed order.

    Attributes:
        store: n, the store's number among the endpoints.
        queue_id: n.
    """

    store: I4
    queue_id: I4

    @classmethod
    def of(cls, counts: Sequence[int]) -> Queues:
        """Number queues: those of the first store, then those of the second, and so on.

        Args:
            counts: number of queues of each store.
        """
        stores = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ids = [np.arange(count, dtype=np.int32) for count in counts]
        return cls(stores, np.concatenate([*ids, np.empty(0, np.int32)]))

    def __len__(self) -> int:
        return len(self.queue_id)


class TargetStores:
    """The stores of a write, and their topics.

    Args:
        clients: one for each endpoint, in the order of the option.
    """

    def __init__(self, clients: Sequence[StoreClient]) -> None:
        self.clients = clients
        self.opened: list[OpenReply] = [client.open(()) for client in clients]
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

        Raises:
            TopicNotFoundError: no store has the topic, or allows writing it.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._ask(topic)
        return found

    def _ask(self, topic: str) -> Queues:
        settings = [client.open((topic,)).topics.get(topic) for client in self.clients]
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
