"""The tables of brokers and of their topics, indexed by all that comes or goes.

So a broker that comes or goes costs no more than its own entries. Upstream: brokerAddrTable,
clusterAddrTable and brokerLiveTable, which are searched, and topicQueueTable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.constants import MASTER_ID
from rmqstore_spark.namesrv.registration import BrokerId, DataVersion, TopicQueues
from rmqstore_spark.remoting.codec.codes import ResponseCode

_READ: Final = 4
_WRITE: Final = 2


@dataclass
class MemberAddresses:
    """The addresses of a broker's master and slaves, by id."""

    cluster: str
    by_id: dict[int, str] = field(default_factory=dict)


@dataclass
class LiveBroker:
    """A broker that has registered.

    Attributes:
        broker: who it is.
        heard_at: when it was last heard, in seconds of a clock that only goes forward.
        version: of its topics.
        connection: on which it last registered.
        ha_address: where its slaves find it.
        digest: of the body of its last registration.
    """

    broker: BrokerId
    heard_at: float
    version: DataVersion
    connection: Hashable
    ha_address: str
    digest: bytes


class BrokerNames:
    """The addresses of brokers by name, and the names by cluster."""

    def __init__(self) -> None:
        self._brokers: dict[str, MemberAddresses] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._names_at: dict[str, dict[str, None]] = {}
        self._clusters_of: dict[str, dict[str, None]] = {}

    @property
    def clusters(self) -> Mapping[str, Collection[str]]:
        """The names of brokers, by cluster."""
        return self._clusters

    def __iter__(self) -> Iterator[str]:
        return iter(self._brokers)

    def __contains__(self, name: str) -> bool:
        return name in self._brokers

    def __getitem__(self, name: str) -> MemberAddresses:
        return self._brokers[name]

    def get(self, name: str) -> MemberAddresses | None:
        """Return the addresses of a broker by name; None if there is none."""
        return self._brokers.get(name)

    def address(self, name: str, id_: int) -> str | None:
        """Return the address of a broker by name and id; None if there is none."""
        known = self._brokers.get(name)
        return None if known is None else known.by_id.get(id_)

    def master(self, name: str) -> str | None:
        """Return the address of a broker's master."""
        return self.address(name, MASTER_ID)

    def add(self, broker: BrokerId) -> bool:
        """Add a broker, or change its address or id; return whether anything has changed."""
        known = self._brokers.get(broker.name)
        if known is None:
            known = self._brokers[broker.name] = MemberAddresses(broker.cluster)
        names = self._clusters.setdefault(broker.cluster, {})
        is_new = broker.name not in names
        names[broker.name] = None
        self._clusters_of.setdefault(broker.name, {})[broker.cluster] = None
        # A slave that became the master has registered under another id before.
        stale = [id_ for id_, addr in known.by_id.items() if addr == broker.address]
        if stale == [broker.id]:
            return is_new
        for id_ in stale:
            del known.by_id[id_]
        before = known.by_id.get(broker.id)
        known.by_id[broker.id] = broker.address
        self._names_at.setdefault(broker.address, {})[broker.name] = None
        if before is not None:
            self._forget(before, broker.name)
        return True

    def remove(self, name: str, id_: int) -> bool:
        """Remove an address by its broker's name and id; return whether the name is gone too."""
        known = self._brokers[name]
        self._forget(known.by_id.pop(id_), name)
        return self._removed_if_empty(name)

    def remove_address(self, address: str) -> list[str]:
        """Remove an address from all brokers; return the names that are gone with it."""
        gone = []
        for name in self._names_at.pop(address, ()):
            known = self._brokers[name]
            for id_ in [id_ for id_, addr in known.by_id.items() if addr == address]:
                del known.by_id[id_]
            if self._removed_if_empty(name):
                gone.append(name)
        return gone

    def _forget(self, address: str, name: str) -> None:
        """Take note that a broker does not have an address any more, unless under another id."""
        if address in self._brokers[name].by_id.values():
            return
        names = self._names_at[address]
        del names[name]
        if not names:
            del self._names_at[address]

    def _removed_if_empty(self, name: str) -> bool:
        if self._brokers[name].by_id:
            return False
        del self._brokers[name]
        for cluster in self._clusters_of.pop(name):
            names = self._clusters[cluster]
            del names[name]
            if not names:
                del self._clusters[cluster]
        return True


class LiveBrokers:
    """Brokers that were heard, by address and by connection."""

    def __init__(self) -> None:
        self._live: dict[str, LiveBroker] = {}
        self._on: dict[Hashable, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, address: str) -> bool:
        return address in self._live

    def get(self, address: str) -> LiveBroker | None:
        """Return a broker by its address; None if it has not registered."""
        return self._live.get(address)

    def put(self, live: LiveBroker) -> None:
        """Take note of a registration."""
        address = live.broker.address
        self._leave_connection(address)
        self._live[address] = live
        self._on.setdefault(live.connection, {})[address] = None

    def remove(self, address: str) -> LiveBroker:
        """Remove a broker; return it."""
        self._leave_connection(address)
        return self._live.pop(address)

    def on(self, connection: Hashable) -> list[str]:
        """Return the addresses of those that registered last on a connection."""
        return list(self._on.get(connection, ()))

    def silent(self, since: float) -> list[str]:
        """Return the addresses of those that were not heard since a time."""
        return [address for address, live in self._live.items() if live.heard_at < since]

    def _leave_connection(self, address: str) -> None:
        live = self._live.get(address)
        if live is None:
            return
        addresses = self._on[live.connection]
        del addresses[address]
        if not addresses:
            del self._on[live.connection]


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
