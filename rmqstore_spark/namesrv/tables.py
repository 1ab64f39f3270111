"""What the name server knows: five tables, in memory alone, and the routes that follow from them.

Brokers fill them when they register. A broker leaves them when it unregisters, when its connection
closes, and when it has been silent for too long. Upstream: RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.constants import MASTER_ID
from rmqstore_spark.namesrv.answers import AnswerCache
from rmqstore_spark.namesrv.registration import BrokerId, DataVersion, Registration
from rmqstore_spark.namesrv.topics import TopicRoutes
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import ResponseCode

__all__ = ["LiveBroker", "MasterAddresses", "RouteTables"]

_UNIT: Final = 1
_UNIT_SUB: Final = 2
_MAX_ROUTES: Final = 64 << 20
"""Most bytes of encoded routes that are kept. Those of a topic on 10,000 brokers have 2 MB."""


@dataclass
class _Addresses:
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


@dataclass(frozen=True)
class MasterAddresses:
    """What a slave is told of its master; empty if there is none."""

    address: str = ""
    ha_address: str = ""


class RouteTables:
    """The five tables.

    Args:
        max_brokers: most addresses of brokers.
        max_entries: most topics, each counted for every broker that has it.
    """

    def __init__(self, max_brokers: int, max_entries: int) -> None:
        self._max_brokers = max_brokers
        self._topics = TopicRoutes(max_entries)
        self._brokers: dict[str, _Addresses] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}
        # Encoded answers; what changes a table removes those that follow from it.
        self._routes = AnswerCache(_MAX_ROUTES)
        self._lists: dict[str, bytes] = {}

    # ---- brokers come

    def repeats(self, broker: BrokerId, digest: bytes) -> bool:
        """Return whether a registration only repeats the last one of its broker.

        Args:
            broker: who registers.
            digest: of the registration's body.
        """
        live = self._live.get(broker.address)
        known = self._brokers.get(broker.name)
        return (
            live is not None
            and live.digest == digest
            and known is not None
            and known.by_id.get(broker.id) == broker.address
            and broker.name in self._clusters.get(broker.cluster, ())
        )

    def hear(
        self, broker: BrokerId, now: float, connection: Hashable, ha_address: str
    ) -> MasterAddresses:
        """Take note of a registration that repeats the last one.

        Returns:
            The master of a slave.
        """
        live = self._live[broker.address]
        live.broker, live.heard_at = broker, now
        live.connection, live.ha_address = connection, ha_address
        return self._master_of(broker)

    def register(
        self, told: Registration, now: float, connection: Hashable, digest: bytes
    ) -> MasterAddresses:
        """Take a broker's registration.

        Topics are added and changed, never removed: a broker may tell only those that changed.

        Args:
            told: the registration.
            now: the time, in seconds of a clock that only goes forward.
            connection: on which it came.
            digest: of its body.

        Returns:
            The master of a slave.

        Raises:
            RemotingError: there are too many brokers or topics. Nothing has changed.
        """
        broker = told.broker
        is_new = broker.address not in self._live
        if is_new and len(self._live) >= self._max_brokers:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"the name server has {self._max_brokers} brokers, as many as maxBrokers allows",
            )
        known = self._brokers.get(broker.name)
        takes_topics = broker.id == MASTER_ID and (
            self.is_changed(broker.address, told.version)
            or known is None
            or broker.id not in known.by_id
        )
        if takes_topics:
            self._topics.check_room(broker.name, told.topics)
        if known is None:
            known = self._brokers[broker.name] = _Addresses(broker.cluster)
        names = self._clusters.setdefault(broker.cluster, {})
        if broker.name not in names:
            names[broker.name] = None
            self._forget_answers()
        # A slave that became the master has registered under another id before.
        stale = [id_ for id_, addr in known.by_id.items() if addr == broker.address]
        if stale != [broker.id]:
            for id_ in stale:
                del known.by_id[id_]
            known.by_id[broker.id] = broker.address
            self._forget_answers()
        if takes_topics:
            for topic, queues in told.topics.items():
                is_known = topic in self._topics
                if self._topics.put(topic, queues):
                    self._routes.forget(topic)
                    if not is_known:
                        self._lists.clear()
        self._live[broker.address] = LiveBroker(
            broker, now, told.version, connection, told.ha_address, digest
        )
        self._put_filter_servers(broker.address, told.filter_servers)
        return self._master_of(broker)

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """Return whether a broker's topics have another version than the one it registered."""
        live = self._live.get(address)
        return live is None or live.version != version

    def version(self, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered; None if it did not."""
        live = self._live.get(address)
        return None if live is None else live.version

    def touch(self, address: str, now: float) -> None:
        """Take note of a sign of life."""
        if (live := self._live.get(address)) is not None:
            live.heard_at = now

    # ---- brokers go

    def unregister(self, broker: BrokerId) -> bool:
        """Remove a broker that says that it ends.

        What another broker registered stays: its address under another name or id, and its id
        with another address.

        Returns:
            Whether it was registered.
        """
        live = self._live.get(broker.address)
        told = (broker.name, broker.id)
        is_live = live is not None and (live.broker.name, live.broker.id) == told
        if is_live:
            self._remove_live(broker.address)
        known = self._brokers.get(broker.name)
        if known is None or known.by_id.get(broker.id) != broker.address:
            return is_live
        del known.by_id[broker.id]
        if not known.by_id:
            self._remove_name(broker.name)
        self._forget_answers()
        return True

    def lost(self, connection: Hashable) -> list[LiveBroker]:
        """Remove the brokers whose connection has closed; return them."""
        return self._remove(lambda live: live.connection is connection)

    def expire(self, silent_since: float) -> list[LiveBroker]:
        """Remove the brokers that were not heard since a time; return them."""
        return self._remove(lambda live: live.heard_at < silent_since)

    # ---- topics

    def set_write_permission(self, broker_name: str, *, may_write: bool) -> int:
        """Allow or forbid writing to all topics of a broker, until it registers a change.

        Returns:
            The number of its topics.
        """
        count = self._topics.set_write_permission(broker_name, may_write=may_write)
        self._forget_answers()
        return count

    def delete_topic(self, topic: str, cluster: str) -> None:
        """Remove a topic.

        Args:
            topic: its name.
            cluster: of its brokers; empty: all.
        """
        names = self._clusters.get(cluster, ()) if cluster else self._topics.brokers_of(topic)
        self._topics.delete(topic, names)
        self._forget_answers()

    # ---- answers

    def route(self, topic: str) -> bytes | None:
        """Return the route of a topic as JSON (TopicRouteData); None if no broker has it."""
        found = self._routes.get(topic)
        if found is None:
            of_brokers = self._topics.brokers_of(topic)
            known = {name: self._brokers[name] for name in of_brokers if name in self._brokers}
            if not known:
                return None
            addresses = [addr for each in known.values() for addr in each.by_id.values()]
            found = dump_body(
                {
                    "brokerDatas": [_broker_data(name, each) for name, each in known.items()],
                    "filterServerTable": {
                        address: self._filter_servers[address]
                        for address in addresses
                        if address in self._filter_servers
                    },
                    "queueDatas": [queues._asdict() for queues in of_brokers.values()],
                }
            )
            self._routes.keep(topic, found)
        return found

    def cluster_info(self) -> bytes:
        """Return all clusters and brokers as JSON (ClusterInfo)."""
        return self._list(
            "clusters",
            lambda: {
                "brokerAddrTable": {n: _broker_data(n, each) for n, each in self._brokers.items()},
                "clusterAddrTable": {name: list(names) for name, names in self._clusters.items()},
            },
        )

    def members(self, cluster: str, name: str) -> bytes:
        """Return the processes of a broker name as JSON (GetBrokerMemberGroupResponseBody)."""
        known = self._brokers.get(name)
        found = {} if known is None or known.cluster != cluster else _broker_data(name, known)
        told = {"brokerAddrs": {}, "brokerName": name, "cluster": cluster, **found}
        return dump_body({"brokerMemberGroup": told})

    def all_topics(self) -> bytes:
        """Return the names of all topics as JSON (TopicList)."""
        return self._list("topics", lambda: {"topicList": list(self._topics)})

    def topics_of_cluster(self, cluster: str) -> bytes:
        """Return the names of the topics of a cluster as JSON (TopicList)."""
        names = self._clusters.get(cluster, {})
        return dump_body({"topicList": self._topics.of_brokers(names)})

    def system_topics(self) -> bytes:
        """Return the names of clusters and brokers, which are topics too, as JSON (TopicList)."""
        names: dict[str, None] = {}
        for cluster, brokers in self._clusters.items():
            names |= {cluster: None, **brokers}
        told: dict[str, Any] = {"topicList": list(names)}
        for each in self._brokers.values():
            told = {"brokerAddr": next(iter(each.by_id.values())), **told}
            break
        return dump_body(told)

    def unit_topics(self) -> bytes:
        """Return the names of the topics of a unit as JSON (TopicList)."""
        return self._by_flag(lambda flag: bool(flag & _UNIT))

    def unit_sub_topics(self) -> bytes:
        """Return the names of the topics that a unit subscribes to as JSON (TopicList)."""
        return self._by_flag(lambda flag: bool(flag & _UNIT_SUB))

    def unit_sub_of_no_unit_topics(self) -> bytes:
        """Return those of them that are not of a unit as JSON (TopicList)."""
        return self._by_flag(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)

    # ---- its own

    def _put_filter_servers(self, address: str, servers: list[str] | None) -> None:
        if servers is not None and servers != self._filter_servers.get(address, []):
            if servers:
                self._filter_servers[address] = servers
            else:
                del self._filter_servers[address]
            self._forget_answers()

    def _master_of(self, broker: BrokerId) -> MasterAddresses:
        address = self._brokers[broker.name].by_id.get(MASTER_ID)
        live = self._live.get(address) if address is not None else None
        if broker.id == MASTER_ID or address is None or live is None:
            return MasterAddresses()
        return MasterAddresses(address, live.ha_address)

    def _remove(self, is_gone: Callable[[LiveBroker], bool]) -> list[LiveBroker]:
        gone = {addr: live for addr, live in self._live.items() if is_gone(live)}
        for address in gone:
            self._remove_address(address)
        return list(gone.values())

    def _remove_live(self, address: str) -> None:
        del self._live[address]
        if self._filter_servers.pop(address, None) is not None:
            self._forget_answers()

    def _remove_address(self, address: str) -> None:
        self._remove_live(address)
        for name, known in list(self._brokers.items()):
            for id_ in [id_ for id_, addr in known.by_id.items() if addr == address]:
                del known.by_id[id_]
            if not known.by_id:
                self._remove_name(name)
        self._forget_answers()

    def _remove_name(self, name: str) -> None:
        """Remove a broker that has no address any more, and its topics."""
        del self._brokers[name]
        for cluster, names in list(self._clusters.items()):
            names.pop(name, None)
            if not names:
                del self._clusters[cluster]
        self._topics.remove_broker(name)

    def _forget_answers(self) -> None:
        self._routes.clear()
        self._lists.clear()

    def _list(self, name: str, make: Callable[[], Any]) -> bytes:
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = dump_body(make())
        return found

    def _by_flag(self, is_wanted: Callable[[int], bool]) -> bytes:
        return dump_body({"topicList": self._topics.with_flag(is_wanted)})


def _broker_data(name: str, known: _Addresses) -> dict[str, Any]:
    by_id = {str(id_): known.by_id[id_] for id_ in sorted(known.by_id)}
    return {"brokerAddrs": by_id, "brokerName": name, "cluster": known.cluster}
