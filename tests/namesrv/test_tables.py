"""What registers, what goes, and what is answered then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.namesrv.registration import (
    DataVersion,
    Registration,
    TopicQueues,
    read_registration,
)
from rmqstore_spark.namesrv.tables import MasterAddresses, RouteTables
from tests.namesrv.registering import compressed, registration, topic


class _Tables(RouteTables):
    """Tables with a clock that is set by hand; each registration has a digest of its own."""

    def __init__(self, max_brokers: int = 100, max_entries: int = 1000) -> None:
        super().__init__(max_brokers, max_entries)
        self.now = 0.0
        self.count = 0

    def take(self, connection: object = "c", **told: Any) -> MasterAddresses:
        self.count += 1
        digest = str(self.count).encode()
        read = read_registration(registration(**told))
        return self.register(read, self.now, connection, digest)

    def told(self, name: str) -> Any:
        found = self.route(name)
        return None if found is None else json.loads(found)

    def perms(self, name: str) -> dict[str, int]:
        return {queues["brokerName"]: queues["perm"] for queues in self.told(name)["queueDatas"]}

    def names(self) -> set[str]:
        return set(json.loads(self.all_topics())["topicList"])

    def clusters(self) -> Any:
        return json.loads(self.cluster_info())["clusterAddrTable"]


def test_a_route_has_all_brokers_of_a_topic() -> None:
    tables = _Tables()
    tables.take(topics=["T", "U"])
    tables.take(topics=[topic("T", 8)], name="broker-b", address="h:2")
    route = tables.told("T")
    assert {
        (b["brokerName"], b["cluster"], b["brokerAddrs"]["0"]) for b in route["brokerDatas"]
    } == {
        ("broker-a", "DefaultCluster", "127.0.0.1:10911"),
        ("broker-b", "DefaultCluster", "h:2"),
    }
    assert {
        (q["brokerName"], q["readQueueNums"], q["writeQueueNums"]) for q in route["queueDatas"]
    } == {
        ("broker-a", 4, 4),
        ("broker-b", 8, 8),
    }
    assert [b["brokerName"] for b in tables.told("U")["brokerDatas"]] == ["broker-a"]
    assert tables.told("V") is None


def test_a_registration_adds_and_changes_topics_and_removes_none() -> None:
    tables = _Tables()
    tables.take(topics=["T", "U"], version=(1, 1))
    tables.take(topics=[topic("T", 9), topic("V")], version=(2, 1))
    assert tables.names() == {"T", "U", "V"}
    assert tables.told("T")["queueDatas"][0]["readQueueNums"] == 9


def test_topics_of_the_same_version_are_not_taken() -> None:
    tables = _Tables()
    tables.take(topics=["T"], version=(1, 1))
    tables.take(topics=["U"], version=(1, 1))
    assert tables.names() == {"T"}
    tables.take(topics=["U"], version=(1, 2))
    assert tables.names() == {"T", "U"}


def test_topics_of_a_slave_are_not_taken() -> None:
    tables = _Tables()
    tables.take(topics=["T"], broker_id=1, address="h:2")
    assert tables.names() == set()


def test_a_slave_is_told_its_living_master_and_its_address_stays_when_that_goes() -> None:
    tables = _Tables()
    slave = {"broker_id": 1, "address": "h:2", "connection": "slave"}
    assert tables.take(**slave) == MasterAddresses()
    assert tables.take(topics=["T"], connection="master") == MasterAddresses()
    assert tables.take(**slave) == MasterAddresses("127.0.0.1:10911", "127.0.0.1:10912")
    tables.lost("master")
    assert tables.told("T")["brokerDatas"][0]["brokerAddrs"] == {"1": "h:2"}
    assert tables.take(**slave) == MasterAddresses()
    tables.lost("slave")
    assert tables.told("T") is None
    assert tables.names() == set()
    assert tables.clusters() == {}


def test_a_slave_that_becomes_the_master_has_one_address() -> None:
    tables = _Tables()
    tables.take(topics=["T"], connection="old")
    tables.take(broker_id=1, address="h:2", connection="new")
    tables.lost("old")
    tables.take(topics=["T"], broker_id=0, address="h:2", connection="new")
    assert tables.told("T")["brokerDatas"][0]["brokerAddrs"] == {"0": "h:2"}


def test_a_broker_that_unregisters_leaves_the_address_of_its_successor() -> None:
    tables = _Tables()
    old = registration(["T"], address="h:1")
    tables.take(topics=["T"], address="h:1")
    tables.take(topics=["T"], address="h:2")
    tables.unregister(read_registration(old).broker)
    assert tables.told("T")["brokerDatas"][0]["brokerAddrs"] == {"0": "h:2"}
    tables.unregister(read_registration(registration(address="h:2")).broker)
    assert tables.told("T") is None


@pytest.mark.parametrize(
    "other", [{"broker_id": 1}, {"name": "broker-b"}, {"address": "h:9"}, {"name": "nobody"}]
)
def test_a_broker_that_unregisters_as_another_removes_nothing(other: dict[str, Any]) -> None:
    tables = _Tables()
    tables.take(topics=["T"], filter_servers=["h:5"])
    tables.take(topics=["U"], name="broker-b", address="h:2")
    before = tables.told("T"), tables.told("U"), tables.clusters()
    assert not tables.unregister(read_registration(registration(**other)).broker)
    assert (tables.told("T"), tables.told("U"), tables.clusters()) == before
    assert tables.version("127.0.0.1:10911") == DataVersion(1, 1)
    assert tables.unregister(read_registration(registration()).broker)
    assert tables.version("127.0.0.1:10911") is None


def test_an_address_that_registered_under_a_new_name_keeps_it() -> None:
    tables = _Tables()
    tables.take(topics=["T"])
    tables.take(topics=["T"], name="broker-b")
    assert tables.unregister(read_registration(registration()).broker)
    assert [b["brokerName"] for b in tables.told("T")["brokerDatas"]] == ["broker-b"]
    assert tables.version("127.0.0.1:10911") == DataVersion(1, 1)


def test_a_lost_connection_takes_only_brokers_that_registered_on_it_last() -> None:
    tables = _Tables()
    tables.take(topics=["T"], connection="first")
    tables.take(topics=["T"], connection="second")
    tables.lost("first")
    assert tables.told("T")
    tables.lost("second")
    assert tables.told("T") is None


def test_a_silent_broker_is_removed_and_one_that_is_heard_stays() -> None:
    tables = _Tables()
    tables.take(topics=["T"], connection="a")
    tables.take(topics=["U"], name="broker-b", address="h:2", connection="b")
    tables.now = 100.0
    tables.touch("h:2", tables.now)
    gone = tables.expire(tables.now - 50)
    assert [each.connection for each in gone] == ["a"]
    assert tables.names() == {"U"}
    assert tables.clusters() == {"DefaultCluster": ["broker-b"]}


def test_a_repeated_registration_is_recognized_until_something_has_changed() -> None:
    tables = _Tables()
    broker = read_registration(registration(["T"])).broker
    assert not tables.repeats(broker, b"1")
    tables.take(topics=["T"])
    assert tables.repeats(broker, b"1")
    assert not tables.repeats(broker, b"2")
    assert not tables.repeats(broker._replace(id=1), b"1")
    assert not tables.repeats(broker._replace(cluster="other"), b"1")
    tables.now = 90.0
    tables.hear(broker, tables.now, "new connection", "ha:1")
    tables.lost("c")
    assert not list(tables.expire(50.0))
    tables.lost("new connection")
    assert not tables.repeats(broker, b"1")


def test_write_permission_is_wiped_and_added_until_the_broker_registers_a_change() -> None:
    tables = _Tables()
    tables.take(topics=["T", topic("U", perm=4)])
    tables.take(topics=["T"], name="broker-b", address="h:2")
    assert tables.perms("T") == {"broker-a": 6, "broker-b": 6}
    assert tables.set_write_permission("broker-a", may_write=False) == 2
    assert tables.perms("T") == {"broker-a": 4, "broker-b": 6}
    assert tables.set_write_permission("broker-a", may_write=True) == 2
    assert tables.perms("U") == {"broker-a": 6}
    tables.take(topics=["T", topic("U", perm=4)])
    assert tables.perms("U") == {"broker-a": 6}
    tables.take(topics=["T", topic("U", perm=4)], version=(2, 2))
    assert tables.perms("U") == {"broker-a": 4}
    assert tables.set_write_permission("nobody", may_write=True) == 0


def test_a_topic_is_deleted_from_a_cluster_or_everywhere() -> None:
    tables = _Tables()
    tables.take(topics=["T", "U"])
    tables.take(topics=["T", "U"], name="broker-b", address="h:2", cluster="other")
    tables.delete_topic("T", "other")
    assert tables.perms("T") == {"broker-a": 6}
    tables.delete_topic("T", "DefaultCluster")
    assert tables.told("T") is None
    tables.delete_topic("U", "")
    tables.delete_topic("never there", "")
    tables.delete_topic("never there", "no cluster")
    assert tables.names() == set()


def test_lists_of_topics() -> None:
    tables = _Tables()
    flags = {"plain": 0, "unit": 1, "sub": 2, "both": 3}
    tables.take(topics=[topic(name, flag=flag) for name, flag in flags.items()])
    tables.take(topics=["other"], name="broker-b", address="h:2", cluster="C2")

    def names(body: bytes) -> set[str]:
        return set(json.loads(body)["topicList"])

    assert names(tables.unit_topics()) == {"unit", "both"}
    assert names(tables.unit_sub_topics()) == {"sub", "both"}
    assert names(tables.unit_sub_of_no_unit_topics()) == {"sub"}
    assert names(tables.topics_of_cluster("C2")) == {"other"}
    assert names(tables.topics_of_cluster("C3")) == set()
    assert names(tables.system_topics()) == {"DefaultCluster", "broker-a", "C2", "broker-b"}


def test_filter_servers_are_in_the_route_until_the_broker_has_none() -> None:
    tables = _Tables()
    tables.take(topics=["T"], filter_servers=["h:9"])
    assert tables.told("T")["filterServerTable"] == {"127.0.0.1:10911": ["h:9"]}
    tables.take(topics=["T"])
    assert tables.told("T")["filterServerTable"] == {}


def test_too_many_brokers_or_topics_are_refused_and_change_nothing() -> None:
    tables = _Tables(max_brokers=2, max_entries=3)
    tables.take(topics=["T", "U"])
    with pytest.raises(RemotingError, match="maxTopicEntries"):
        tables.take(topics=["T", "U"], name="broker-b", address="h:2")
    assert tables.clusters() == {"DefaultCluster": ["broker-a"]}
    tables.take(topics=["T"], name="broker-b", address="h:2")
    with pytest.raises(RemotingError, match="maxBrokers"):
        tables.take(name="broker-c", address="h:3")
    tables.delete_topic("T", "")
    tables.take(topics=["V", "W"], version=(2, 2))


def test_a_compressed_registration_says_the_same() -> None:
    plain = registration(["T", topic("U", 8, 4)], version=(3, 7), filter_servers=["h:1"])
    found = read_registration(compressed(plain))
    assert found == read_registration(plain)
    assert found.version == DataVersion(3, 7)
    assert found.topics["U"] == TopicQueues("broker-a", 4, 8, 0, 8)


_NAME = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10)


@settings(max_examples=40)
@given(st.dictionaries(_NAME, st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 7))))
def test_any_topics_are_read_alike_in_both_forms(topics: dict[str, tuple[int, int]]) -> None:
    plain = registration([topic(name, *numbers) for name, numbers in topics.items()])
    assert read_registration(compressed(plain)) == read_registration(plain)


def test_an_old_broker_sends_topics_alone() -> None:
    request = registration(["T"])
    wrapper = json.loads(request.body)["topicConfigSerializeWrapper"]
    request.body = json.dumps(wrapper).encode()
    request.version = 36
    request.ext["bodyCrc32"] = "0"
    found = read_registration(request)
    assert list(found.topics) == ["T"]
    assert found.filter_servers is None


def test_a_registration_without_a_body_has_no_topics() -> None:
    request = registration(["T"])
    request.body = b""
    del request.ext["bodyCrc32"]
    assert read_registration(request) == Registration(
        read_registration(registration()).broker, "127.0.0.1:10912"
    )


@pytest.mark.parametrize("missing", ["brokerName", "brokerAddr", "clusterName", "brokerId"])
def test_a_registration_without_a_field_is_refused_by_name(missing: str) -> None:
    request = registration(["T"])
    del request.ext[missing]
    with pytest.raises(RemotingError, match=missing):
        read_registration(request)


def test_a_compressed_registration_cut_at_any_byte_is_refused() -> None:
    request = compressed(registration(["T"], filter_servers=["h:1"]))
    request.ext["bodyCrc32"] = "0"
    whole = request.body
    for at in range(1, len(whole)):
        request.body = whole[:at]
        with pytest.raises(FrameError):
            read_registration(request)


@pytest.mark.parametrize(
    "wrong",
    [
        topic("T", perm=-1),
        topic("T", -1),
        topic("%RETRY%" + "g" * 506),
        topic("a\nb"),
        topic(""),
        {**topic("T"), "perm": "x"},
        {**topic("T"), "readQueueNums": 1e99},
    ],
)
def test_a_topic_that_no_client_could_use_is_left_out(wrong: dict[str, Any]) -> None:
    good = ["T1", "%RETRY%" + "g" * 255, "T2"]
    found = read_registration(registration([good[0], wrong, *good[1:]]))
    assert list(found.topics) == good
    assert found.left_out == 1
    assert "must" in found.left_out_for


def test_a_compressed_topic_that_no_client_could_use_is_left_out() -> None:
    found = read_registration(compressed(registration(["T1", topic("T", -1), "T2"])))
    assert (list(found.topics), found.left_out) == (["T1", "T2"], 1)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"topicConfigSerializeWrapper":[]}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":1}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":[]}}}',
        b'{"filterServerList":{}}',
        b'{"filterServerList":[1]}',
    ],
)
def test_a_body_of_another_shape_is_refused(body: bytes) -> None:
    request = registration()
    request.body, request.ext["bodyCrc32"] = body, "0"
    with pytest.raises(FrameError):
        read_registration(request)
