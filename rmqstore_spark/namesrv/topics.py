"""The table of topics: which brokers have a topic, and with how many queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.namesrv.registration import TopicQueues
from rmqstore_spark.remoting.codec.codes import ResponseCode

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
        self._of: dict[str, set[str]] = {}  # the topics of each broker

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def brokers_of(self, topic: str) -> Mapping[str, TopicQueues]:
        """Return the queues of a topic by the name of their broker."""
        return self._topics.get(topic, {})

    def of_brokers(self, names: Collection[str]) -> list[str]:
        """Return the topics that at least one of some brokers has."""
        return list(set().union(*(self._of.get(name, ()) for name in names)))

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
        if before is None:
            self._entries += 1
            self._of.setdefault(queues.brokerName, set()).add(topic)
        return before != queues

    def set_write_permission(self, broker_name: str, *, may_write: bool) -> int:
        """Allow or forbid writing to all topics of a broker; return their number."""
        topics = self._of.get(broker_name, ())
        for topic in topics:
            of_brokers = self._topics[topic]
            queues = of_brokers[broker_name]
            perm = _READ | _WRITE if may_write else queues.perm & ~_WRITE
            of_brokers[broker_name] = queues._replace(perm=perm)
        return len(topics)

    def delete(self, topic: str, broker_names: Iterable[str]) -> None:
        """Remove a topic from some brokers."""
        for name in list(broker_names):
            topics = self._of.get(name, set())
            if topic in topics:
                topics.remove(topic)
                if not topics:
                    del self._of[name]
                self._take_from(topic, name)

    def remove_broker(self, broker_name: str) -> None:
        """Remove all topics of a broker."""
        for topic in self._of.pop(broker_name, ()):
            self._take_from(topic, broker_name)

    def _take_from(self, topic: str, broker_name: str) -> None:
        self._entries -= 1
        of_brokers = self._topics[topic]
        del of_brokers[broker_name]
        if not of_brokers:
            del self._topics[topic]
