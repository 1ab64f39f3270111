"""The tables against a plain model of RocketMQ's: RouteInfoManager, with its loops over everything.

Where the tables differ from it on purpose (docs/namesrv.md), the model does as they do: what
another broker registered stays when one unregisters or closes, a cluster goes with its last name,
and an address goes from all names when its broker does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.namesrv.registration import read_registration
from rmqstore_spark.namesrv.tables import RouteTables
from tests.namesrv.registering import registration, topic

NAMES = ["broker-a", "broker-b", "broker-c"]
CLUSTERS = ["c1", "c2"]
ADDRESSES = ["h:1", "h:2", "h:3", "h:4"]
CONNECTIONS = ["x", "y", "z"]
TOPICS = ["t1", "t2", "t3", "t4", "t5"]


class Live(NamedTuple):
    """An entry of brokerLiveTable, and who it is."""

    name: str
    id: int
    heard_at: float
    version: int
    connection: str


class Model:
    """RouteInfoManager: five maps, searched from begin to end."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, dict[str, Any]]] = {}
        self.brokers: dict[str, dict[str, Any]] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[str, Live] = {}

    def register(self, told: dict[str, Any], connection: str, now: float) -> None:
        name, id_, address = told["name"], told["broker_id"], told["address"]
        self.clusters.setdefault(told["cluster"], set()).add(name)
        known = self.brokers.setdefault(name, {"cluster": told["cluster"], "by_id": {}})
        by_id = known["by_id"]
        is_first = id_ not in by_id
        for other in [other for other, addr in by_id.items() if addr == address and other != id_]:
            del by_id[other]
        by_id[id_] = address
        before = self.live.get(address)
        version = told["version"][0]
        if id_ == 0 and (is_first or before is None or before.version != version):
            for each in told["topics"]:
                self.queues.setdefault(each["topicName"], {})[name] = {
                    "perm": each["perm"], "n": each["readQueueNums"], "flag": each["topicSysFlag"],
                }  # fmt: skip
        self.live[address] = Live(name, id_, now, version, connection)

    def unregister(self, name: str, id_: int, address: str) -> None:
        live = self.live.get(address)
        if live is not None and (live.name, live.id) == (name, id_):
            del self.live[address]
        known = self.brokers.get(name)
        if known is not None and known["by_id"].get(id_) == address:
            del known["by_id"][id_]
            self.sweep()

    def lost(self, connection: str) -> set[str]:
        return self.remove(lambda live: live.connection == connection)

    def expire(self, since: float) -> set[str]:
        return self.remove(lambda live: live.heard_at < since)

    def remove(self, is_gone: Callable[[Live], bool]) -> set[str]:
        gone = {address for address, live in self.live.items() if is_gone(live)}
        for address in gone:
            del self.live[address]
            for known in self.brokers.values():
                by_id = known["by_id"]
                for id_ in [id_ for id_, addr in by_id.items() if addr == address]:
                    del by_id[id_]
        self.sweep()
        return gone

    def sweep(self) -> None:
        for name in [name for name, known in self.brokers.items() if not known["by_id"]]:
            del self.brokers[name]
            for of_topic in self.queues.values():
                of_topic.pop(name, None)
            for names in self.clusters.values():
                names.discard(name)
        self.queues = {name: of for name, of in self.queues.items() if of}
        self.clusters = {name: of for name, of in self.clusters.items() if of}

    def set_write(self, name: str, *, may_write: bool) -> int:
        found = [of[name] for of in self.queues.values() if name in of]
        for queues in found:
            queues["perm"] = 6 if may_write else queues["perm"] & ~2
        return len(found)

    def delete(self, name: str, cluster: str) -> None:
        of_topic = self.queues.get(name, {})
        for broker in list(of_topic):
            if not cluster or broker in self.clusters.get(cluster, ()):
                del of_topic[broker]
        self.sweep()


def require_alike(tables: RouteTables, model: Model) -> None:
    def names(body: bytes) -> set[str]:
        found = json.loads(body)["topicList"]
        assert len(found) == len(set(found))
        return set(found)

    for name in TOPICS:
        route = tables.route(name)
        of_topic = model.queues.get(name)
        if of_topic is None:
            assert route is None
            continue
        assert route is not None
        told = json.loads(route)
        assert {
            each["brokerName"]: (each["cluster"], each["brokerAddrs"])
            for each in told["brokerDatas"]
        } == {
            broker: (
                model.brokers[broker]["cluster"],
                {str(id_): addr for id_, addr in model.brokers[broker]["by_id"].items()},
            )
            for broker in of_topic
        }
        assert {
            each["brokerName"]: (each["perm"], each["readQueueNums"], each["topicSysFlag"])
            for each in told["queueDatas"]
        } == {broker: (each["perm"], each["n"], each["flag"]) for broker, each in of_topic.items()}
    info = json.loads(tables.cluster_info())
    assert {name: set(of) for name, of in info["clusterAddrTable"].items()} == model.clusters
    assert set(info["brokerAddrTable"]) == set(model.brokers)
    assert names(tables.all_topics()) == set(model.queues)
    for cluster in CLUSTERS:
        assert names(tables.topics_of_cluster(cluster)) == {
            name
            for name, of in model.queues.items()
            if not model.clusters.get(cluster, set()).isdisjoint(of)
        }
    flags = {name: next(iter(of.values()))["flag"] for name, of in model.queues.items()}
    assert names(tables.unit_topics()) == {name for name, flag in flags.items() if flag & 1}
    assert names(tables.unit_sub_topics()) == {name for name, flag in flags.items() if flag & 2}
    for address in ADDRESSES:
        version = tables.version(address)
        live = model.live.get(address)
        assert (version is None) == (live is None)
        assert version is None or live is None or version.counter == live.version


_TOPIC = st.builds(
    topic, st.sampled_from(TOPICS), st.integers(1, 9), st.sampled_from([2, 4, 6]), st.just(0)
)
_REGISTER = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "cluster": st.sampled_from(CLUSTERS),
        "broker_id": st.integers(0, 2),
        "address": st.sampled_from(ADDRESSES),
        "version": st.tuples(st.integers(1, 3), st.just(1)),
        "topics": st.lists(_TOPIC, max_size=4),
    }
)
_STEP = st.one_of(
    st.tuples(st.just("register"), _REGISTER, st.sampled_from(CONNECTIONS)),
    st.tuples(st.just("register"), _REGISTER, st.sampled_from(CONNECTIONS)),
    st.tuples(
        st.just("unregister"), st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from(ADDRESSES)
    ),
    st.tuples(st.just("lost"), st.sampled_from(CONNECTIONS)),
    st.tuples(st.just("expire"), st.integers(0, 8)),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS), st.sampled_from(["", *CLUSTERS])),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(_STEP, max_size=25))
def test_the_tables_answer_as_the_model(steps: list[Any]) -> None:
    tables, model = RouteTables(100, 10_000), Model()
    for now, (kind, *given_) in enumerate(steps):
        if kind == "register":
            told, connection = given_
            read = read_registration(registration(**told))
            tables.register(read, now, connection, str(now).encode())
            topics = {each["topicName"]: each for each in told["topics"]}
            model.register({**told, "topics": list(topics.values())}, connection, now)
        elif kind == "unregister":
            name, id_, address = given_
            broker = registration(name=name, broker_id=id_, address=address)
            tables.unregister(read_registration(broker).broker)
            model.unregister(name, id_, address)
        elif kind == "lost":
            gone = {live.broker.address for live in tables.lost(given_[0])}
            assert gone == model.lost(given_[0])
        elif kind == "expire":
            since = now - given_[0]
            gone = {live.broker.address for live in tables.expire(since)}
            assert gone == model.expire(since)
        elif kind == "write":
            name, may_write = given_
            count = tables.set_write_permission(name, may_write=may_write)
            assert count == model.set_write(name, may_write=may_write)
        else:
            tables.delete_topic(*given_)
            model.delete(*given_)
        require_alike(tables, model)


class _Counting(dict[str, Any]):
    """A table that counts how often it is asked for a key, or walked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.walked = 0

    def __getitem__(self, key: str) -> Any:
        self.asked += 1
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        self.walked += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walked += 1
        return super().items()


@pytest.mark.parametrize("how", ["lost", "unregister", "expire", "write", "again"])
def test_a_broker_costs_its_own_topics_however_many_others_there_are(how: str) -> None:
    tables = RouteTables(1000, 1_000_000)
    table = tables._topics._topics = _Counting()
    for number in range(200):
        topics = [f"t{number}-{n}" for n in range(50)]
        told = registration(topics, name=f"b{number}", address=f"h:{number}")
        tables.register(read_registration(told), number, f"c{number}", b"")
    table.asked = table.walked = 0
    broker = read_registration(registration(name="b0", address="h:0")).broker
    if how == "lost":
        assert len(tables.lost("c0")) == 1
    elif how == "unregister":
        assert tables.unregister(broker)
    elif how == "expire":
        assert len(list(tables.expire(1))) == 1
    elif how == "write":
        assert tables.set_write_permission("b0", may_write=False) == 50
    else:
        told = registration(
            [f"t0-{n}" for n in range(50)], name="b0", address="h:0", version=(2, 2)
        )
        tables.register(read_registration(told), 500, "c0", b"2")
    assert table.walked == 0
    assert table.asked <= 100
