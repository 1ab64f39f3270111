"""What the name server knows: five tables, in memory alone, and the routes that follow from them.

Brokers fill them when they register. A broker leaves them when it unregisters, when its connection
closes, and when it has been silent for too long. Upstream: RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.constants import MASTER_ID
from rmqstore_spark.namesrv.brokers import (
    BrokerNames,
    LiveBroker,
    LiveBrokers,
    MemberAddresses,
    TopicRoutes,
)
from rmqstore_spark.namesrv.registration import BrokerId, DataVersion, Registration
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import ResponseCode

_ENTRY_BYTES: Final = 200
"""About what an entry needs beside its answer."""
_UNIT: Final = 1
_UNIT_SUB: Final = 2
_MAX_ROUTES: Final = 64 << 20
"""Most bytes of encoded routes that are kept. Those of a topic on 10,000 brokers have 2 MB."""


class AnswerCache:
    """Answers by name, up to a number of bytes. The oldest make room for others.

    Args:
        most: most bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: dict[str, bytes] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of all answers."""
        return self._held

    def get(self, name: str) -> bytes | None:
        """Return an answer; None if it is not kept."""
        return self._answers.get(name)

    def keep(self, name: str, answer: bytes) -> None:
        """Keep an answer that is not kept yet, if there can be room for it."""
        size = _size(name, answer)
        if size > self._most:
            return
        while self._held + size > self._most:
            self.forget(next(iter(self._answers)))
        self._answers[name] = answer
        self._held += size

    def forget(self, name: str) -> None:
        """Drop an answer, if it is kept."""
        found = self._answers.pop(name, None)
        if found is not None:
            self._held -= _size(name, found)

    def clear(self) -> None:
        """Drop all answers."""
        self._answers.clear()
        self._held = 0


def _size(name: str, answer: bytes) -> int:
    return len(name) + len(answer) + _ENTRY_BYTES


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
        self._brokers = BrokerNames()
        self._live = LiveBrokers()
        self._filter_servers: dict[str, list[str]] = {}
        # Encoded answers; what changes a table removes those that follow from it.
        self._routes = AnswerCache(_MAX_ROUTES)
        self._lists: dict[str, bytes] = {}
        self._by_flag: dict[str, bytes] = {}

    # ---- brokers come

    def repeats(self, broker: BrokerId, digest: bytes) -> bool:
        """Return whether a registration only repeats the last one of its broker.

        Args:
            broker: who registers.
            digest: of the registration's body.
        """
        live = self._live.get(broker.address)
        return (
            live is not None
            and live.digest == digest
            and self._brokers.address(broker.name, broker.id) == broker.address
            and broker.name in self._brokers.clusters.get(broker.cluster, ())
        )

    def hear(
        self, broker: BrokerId, now: float, connection: Hashable, ha_address: str
    ) -> MasterAddresses:
        """Take note of a registration that repeats the last one.

        Returns:
            The master of a slave.
        """
        live = self._live.get(broker.address)
        assert live is not None  # noqa: S101  # `repeats` has found it
        self._live.put(
            replace(live, broker=broker, heard_at=now, connection=connection, ha_address=ha_address)
        )
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
        takes_topics = broker.id == MASTER_ID and (
            self.is_changed(broker.address, told.version)
            or self._brokers.master(broker.name) is None
        )
        if takes_topics:
            self._topics.check_room(broker.name, told.topics)
        if self._brokers.add(broker):
            self._forget_answers()
        if takes_topics:
            for topic, queues in told.topics.items():
                is_known = topic in self._topics
                if self._topics.put(topic, queues):
                    self._routes.forget(topic)
                    if is_known:  # its flag may be another one
                        self._by_flag.clear()
                    else:
                        self._forget_lists()
        self._live.put(LiveBroker(broker, now, told.version, connection, told.ha_address, digest))
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
        if self._brokers.address(broker.name, broker.id) != broker.address:
            return is_live
        if self._brokers.remove(broker.name, broker.id):
            self._topics.remove_broker(broker.name)
        self._forget_answers()
        return True

    def lost(self, connection: Hashable) -> list[LiveBroker]:
        """Remove the brokers whose connection has closed; return them."""
        return [self._remove_address(address) for address in self._live.on(connection)]

    def expire(self, silent_since: float) -> Iterator[LiveBroker]:
        """Remove the brokers that were not heard since a time: one whenever the next is asked for.

        Returns:
            Those that were removed. What happens meanwhile counts: one that is heard stays.
        """
        for address in self._live.silent(silent_since):
            live = self._live.get(address)
            if live is not None and live.heard_at < silent_since:
                yield self._remove_address(address)

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
        of_topic = self._topics.brokers_of(topic)
        names = self._brokers.clusters.get(cluster, ()) if cluster else of_topic
        self._topics.delete(topic, [name for name in of_topic if name in names])
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
                "brokerAddrTable": {n: _broker_data(n, self._brokers[n]) for n in self._brokers},
                "clusterAddrTable": {n: list(of) for n, of in self._brokers.clusters.items()},
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
        names = self._brokers.clusters.get(cluster, ())
        return dump_body({"topicList": self._topics.of_brokers(names)})

    def system_topics(self) -> bytes:
        """Return the names of clusters and brokers, which are topics too, as JSON (TopicList)."""
        names: dict[str, None] = {}
        for cluster, brokers in self._brokers.clusters.items():
            names |= dict.fromkeys((cluster, *brokers))
        told: dict[str, Any] = {"topicList": list(names)}
        for name in self._brokers:
            told = {"brokerAddr": next(iter(self._brokers[name].by_id.values())), **told}
            break
        return dump_body(told)

    def unit_topics(self) -> bytes:
        """Return the names of the topics of a unit as JSON (TopicList)."""
        return self._with_flag("unit", lambda flag: bool(flag & _UNIT))

    def unit_sub_topics(self) -> bytes:
        """Return the names of the topics that a unit subscribes to as JSON (TopicList)."""
        return self._with_flag("unitSub", lambda flag: bool(flag & _UNIT_SUB))

    def unit_sub_of_no_unit_topics(self) -> bytes:
        """Return those of them that are not of a unit as JSON (TopicList)."""
        return self._with_flag(
            "unitSubOfNoUnit", lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB
        )

    # ---- its own

    def _put_filter_servers(self, address: str, servers: list[str] | None) -> None:
        if servers is not None and servers != self._filter_servers.get(address, []):
            if servers:
                self._filter_servers[address] = servers
            else:
                del self._filter_servers[address]
            self._forget_answers()

    def _master_of(self, broker: BrokerId) -> MasterAddresses:
        address = self._brokers.master(broker.name)
        live = self._live.get(address) if address is not None else None
        if broker.id == MASTER_ID or address is None or live is None:
            return MasterAddresses()
        return MasterAddresses(address, live.ha_address)

    def _remove_live(self, address: str) -> LiveBroker:
        if self._filter_servers.pop(address, None) is not None:
            self._forget_answers()
        return self._live.remove(address)

    def _remove_address(self, address: str) -> LiveBroker:
        live = self._remove_live(address)
        for name in self._brokers.remove_address(address):
            self._topics.remove_broker(name)
        self._forget_answers()
        return live

    def _forget_answers(self) -> None:
        self._routes.clear()
        self._forget_lists()

    def _forget_lists(self) -> None:
        self._lists.clear()
        self._by_flag.clear()

    def _list(self, name: str, make: Callable[[], Any]) -> bytes:
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = dump_body(make())
        return found

    def _with_flag(self, name: str, is_wanted: Callable[[int], bool]) -> bytes:
        found = self._by_flag.get(name)
        if found is None:
            found = dump_body({"topicList": self._topics.with_flag(is_wanted)})
            self._by_flag[name] = found
        return found


def _broker_data(name: str, known: MemberAddresses) -> dict[str, Any]:
    by_id = {str(id_): known.by_id[id_] for id_ in sorted(known.by_id)}
    return {"brokerAddrs": by_id, "brokerName": name, "cluster": known.cluster}
