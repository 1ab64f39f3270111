"""The table of topics: which brokers have a topic, and with how many queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.namesrv.registration import TopicQueues
from rmqstore_spark.remoting.codec.codes import ResponseCode

__all__ = ["TopicRoutes"]

_READ: Final = 4
_WRITE: Final = 2


class TopicRoutes:
    """Topics, with the queues that each broker has of them. Upstream: topicQueueTable.

    Args:
        max_entries: most topics, each counted for every broker that has it.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries = 0
        self._topics: dict[str, dict[str, TopicQueues]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def brokers_of(self, topic: str) -> Mapping[str, TopicQueues]:
        """Return the queues of a topic by the name of their broker."""
        return self._topics.get(topic, {})

    def of_brokers(self, names: Collection[str]) -> list[str]:
        """Return the topics that at least one of some brokers has."""
        wanted = frozenset(names)
        return [topic for topic, of in self._topics.items() if not wanted.isdisjoint(of)]

    def with_flag(self, is_wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics whose `topicSysFlag` is wanted."""
        # The first broker decides, as in RocketMQ.
        return [
            topic
            for topic, of in self._topics.items()
            if is_wanted(next(iter(of.values())).topicSysFlag)
        ]

    def check_room(self, broker_name: str, topics: Iterable[str]) -> None:
        """Check that a broker may have some topics.

        Raises:
            RemotingError: there are too many topics.
        """
        new = sum(broker_name not in self._topics.get(topic, ()) for topic in topics)
        if self._entries + new > self._max_entries:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"the name server has {self._max_entries} topics, as many as maxTopicEntries "
                "allows",
            )

    def put(self, topic: str, queues: TopicQueues) -> bool:
        """Set a broker's queues of a topic; return whether that changed anything."""
        of_brokers = self._topics.setdefault(topic, {})
        before = of_brokers.get(queues.brokerName)
        of_brokers[queues.brokerName] = queues
        self._entries += before is None
        return before != queues

    def set_write_permission(self, broker_name: str, *, may_write: bool) -> int:
        """Allow or forbid writing to all topics of a broker; return their number."""
        count = 0
        for of_brokers in self._topics.values():
            queues = of_brokers.get(broker_name)
            if queues is not None:
                perm = _READ | _WRITE if may_write else queues.perm & ~_WRITE
                of_brokers[broker_name] = queues._replace(perm=perm)
                count += 1
        return count

    def delete(self, topic: str, broker_names: Iterable[str]) -> None:
        """Remove a topic from some brokers."""
        of_brokers = self._topics.get(topic, {})
        for name in list(broker_names):
            self._entries -= of_brokers.pop(name, None) is not None
        if not of_brokers:
            self._topics.pop(topic, None)

    def remove_broker(self, broker_name: str) -> None:
        """Remove all topics of a broker."""
        for topic in list(self._topics):
            self.delete(topic, (broker_name,))
