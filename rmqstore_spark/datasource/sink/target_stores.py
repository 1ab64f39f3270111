"""Open the stores that a task writes to, and find their queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.produce.queue_choice import Queues

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.wire.messages import OpenReply

_PERM_WRITE: Final = 2


class TargetStores:
    """The stores of a write, and their topics.

    Args:
        clients: one for each endpoint, in the order of the option.
        topic: the topic of all rows, if an option names it.
    """

    def __init__(self, clients: Sequence[StoreClient], topic: str | None) -> None:
        self.clients = clients
        names = () if topic is None else (topic,)
        self.opened: list[OpenReply] = [client.open(names, creates=False) for client in clients]
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

        A missing topic is not created yet: the write may still be refused. It gets the store's
        default settings with its first message, or when Spark commits.

        Raises:
            TopicNotFoundError: no store has the topic, or allows writing it.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._ask(topic)
        return found

    def _ask(self, topic: str) -> Queues:
        settings = [
            client.topics_to_write((topic,), opened).get(topic)
            for client, opened in zip(self.clients, self.opened, strict=True)
        ]
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
