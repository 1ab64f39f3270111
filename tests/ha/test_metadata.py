"""A slave copies the tables of its master's broker: RocketMQ's recorded answers, and wrong ones."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.ha.master_broker import MasterBroker
from rmqstore_spark.ha.replication import Replication
from rmqstore_spark.layout.fastjson import parse_fastjson
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import delay_progress, group_offsets
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.connection import Request
from tests.cli.processes import run
from tests.ha.broker import Broker, answering
from tests.ha.peers import SMALL, PlainMaster, caught_up, frames, log_bytes, mastering
from tests.ha.test_master import filled
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of
from tests.support.recordings import exchanges
from tests.support.waiting import eventually

TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)  # fmt: skip


@contextmanager
def replicating(path: Path, master: str, broker: str) -> Iterator[tuple[StoreWriter, Replication]]:
    """A store that follows a master, and the tables of its broker."""
    settings: dict[str, Any] = {**SMALL, "ha_master_remoting_address": broker}
    config = StoreConfig(**settings, broker_role="SLAVE", ha_master_address=master)
    with StoreWriter.open(path, config) as store:
        replication = Replication(store)
        try:
            yield store, replication
        finally:
            replication.close()


@contextmanager
def slave_of(path: Path, master: str, broker: str) -> Iterator[StoreWriter]:
    """A store that follows a master, and the tables of its broker."""
    with replicating(path, master, broker) as (store, _):
        yield store


def send_log(log: bytes, connection: socket.socket, first: int) -> None:
    """What a master sends of its log to a slave that has it up to an offset."""
    for frame in frames(log, first, 4096):
        connection.sendall(frame)


def recorded() -> dict[int, bytes]:
    """What a broker of RocketMQ answered its slave, by code of the request."""
    found = {}
    for peer in ("broker", "broker-vip"):
        for request, answer in exchanges("slave-master-admin", peer):
            if request.header["code"] in TABLES and answer is not None:
                found[request.header["code"]] = answer.body
    assert set(found) == set(TABLES)
    return found


def value_of(body: bytes) -> Any:
    return parse_fastjson(body.decode())


def config_of(store: Path, name: str) -> Any:
    return parse_fastjson((store / "config" / f"{name}.json").read_text())


def test_a_slave_has_the_tables_that_a_broker_told_its_own(tmp_path: Path) -> None:
    bodies = recorded()
    broker, path = Broker(bodies), tmp_path / "slave"
    with (
        answering(broker) as address,
        PlainMaster(lambda *_: None) as master,
        slave_of(path, master.address, address) as store,
    ):
        eventually(lambda: (path / "config" / "subscriptionGroup.json").exists())
        topics, offsets, delays, groups = (value_of(bodies[code]) for code in TABLES)
        table = topics["topicConfigTable"]
        assert {t.name for t in store.topics} == set(table)
        for topic in store.topics:
            assert topic.to_json() == table[topic.name]
        assert config_of(path, "topics")["dataVersion"] == topics["dataVersion"]
        assert config_of(path, "consumerOffset")["offsetTable"] == offsets["offsetTable"]
        assert config_of(path, "delayOffset")["offsetTable"] == delays["offsetTable"]
        named = {n: g for n, g in groups["subscriptionGroupTable"].items() if n}
        assert config_of(path, "subscriptionGroup")["subscriptionGroupTable"] == named


def test_groups_and_their_lag_are_shown(tmp_path: Path) -> None:
    topics = {"dataVersion": {"counter": 1, "timestamp": 5}, "topicConfigTable": {}}
    offsets = {"offsetTable": {"orders@billing": {"0": 3, "1": 4}}}
    bodies = {
        **recorded(),
        RequestCode.GET_ALL_TOPIC_CONFIG: json.dumps(topics).encode(),
        RequestCode.GET_ALL_CONSUMER_OFFSET: json.dumps(offsets).encode(),
    }
    path = tmp_path / "slave"
    with (
        mastering(tmp_path / "master") as (source, master),
        answering(Broker(bodies)) as address,
        slave_of(path, master.address, address) as store,
    ):
        filled(source)
        caught_up(store, source.published_end)
        eventually(lambda: (path / "config" / "subscriptionGroup.json").exists())
        store.flush()
        with Store.open(path) as copy:
            found = [o for o in group_offsets(copy) if o.group == "billing"]
            assert [(o.topic, o.queue_id, o.offset) for o in found] == [
                ("orders", 0, 3), ("orders", 1, 4),
            ]  # fmt: skip
            assert [p.level for p in delay_progress(copy)] == [1, 2, 3, 5]
        shown = run("groups", path).stdout
        assert "billing" in shown


def test_a_master_that_is_not_one_yet_is_not_asked_for_tables(tmp_path: Path) -> None:
    """A demoted store may follow one that is promoted later, and has older tables until then."""
    asked_early, port, serves = [], free_port(), threading.Event()

    class Observed(Broker):
        def requests(self, requests: Sequence[Request]) -> None:
            asked_early.append(not serves.is_set())
            super().requests(requests)

    path = tmp_path / "slave"
    with (
        answering(Observed(recorded())) as address,
        replicating(path, f"127.0.0.1:{port}", address) as (_, replication),
    ):
        eventually(lambda: replication.stats()["replicationError"])
        with mastering(tmp_path / "master") as (source, _):
            filled(source)
        serves.set()
        with mastering(tmp_path / "master", ha_listen_port=port):
            eventually((path / "config" / "subscriptionGroup.json").exists)
    assert not any(asked_early)


def test_a_promotion_copies_what_the_former_master_has_changed(tmp_path: Path) -> None:
    bodies, path = recorded(), tmp_path / "slave"
    broker = Broker(bodies)
    with (
        answering(broker) as address,
        mastering(tmp_path / "master") as (source, master),
        replicating(path, master.address, address) as (store, replication),
    ):
        filled(source)
        caught_up(store, source.published_end)
        eventually((path / "config" / "subscriptionGroup.json").exists)
        offsets = json.dumps({"offsetTable": {"orders@billing": {"0": 4}}}).encode()
        broker.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets
        replication.promote(waits_for_slaves=False, force=True)
        assert store.consumer_offsets.get("billing", "orders", 0) == 4


def test_a_former_master_that_does_not_answer_is_no_hindrance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with replicating(tmp_path / "slave", address, address) as (store, replication):
        eventually(lambda: replication.stats()["replicationError"])
        replication.promote(waits_for_slaves=False, force=False)
        assert store.state == "RUNNING"
    assert "since the last copy is lost" in caplog.text
    assert "they begin at offset 0 again" in caplog.text


def test_an_empty_slave_begins_where_the_broker_says_that_the_log_begins(tmp_path: Path) -> None:
    with mastering(tmp_path / "master") as (source, _):
        log = filled(source)
    begin = 8192
    runtime = {RequestCode.GET_BROKER_RUNTIME_INFO: b'{"table":{"commitLogMinOffset":"8192"}}'}

    with (
        answering(Broker(runtime)) as address,
        PlainMaster(partial(send_log, log)) as master,
        slave_of(tmp_path / "slave", master.address, address) as store,
    ):
        caught_up(store, len(log))
        assert master.reports[0] == begin
        assert store.replica.begin == begin
    assert log_bytes(tmp_path / "slave", begin, len(log)) == log[begin:]


def test_a_promoted_slave_continues_queues_whose_messages_had_expired(tmp_path: Path) -> None:
    with mastering(tmp_path / "master") as (source, _):
        log = filled(source)
    runtime = f'{{"table":{{"commitLogMinOffset":"8192","commitLogMaxOffset":"{len(log)}"}}}}'
    topics = {"topicConfigTable": {}, "queueEnds": {"old": {"0": 41}}}
    bodies = {
        **recorded(),
        RequestCode.GET_BROKER_RUNTIME_INFO: runtime.encode(),
        RequestCode.GET_ALL_TOPIC_CONFIG: json.dumps(topics).encode(),
    }

    with (
        answering(Broker(bodies)) as address,
        PlainMaster(partial(send_log, log)) as master,
        replicating(tmp_path / "slave", master.address, address) as (store, replication),
    ):
        assert store.queue_ends.are_lacking
        caught_up(store, len(log))
        replication.promote(waits_for_slaves=False, force=True)
        store.create_topic("old")
        assert store.put(block_of([b"next"], topic="old")).ok
        store.flush()
        told = store.told_queue_ends()
    assert told.ends["old"]["0"] == 42


@pytest.mark.parametrize("names_its_end", [True, False])
def test_progress_of_delays_waits_for_the_log_that_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_its_end: bool
) -> None:
    """A broker of RocketMQ does not name the end, and is asked where its log ends afterwards."""
    monkeypatch.setattr("rmqstore_spark.ha.master_broker._INTERVAL_S", 0.05)
    with mastering(tmp_path / "master") as (source, _):
        log = filled(source)
    ends = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(log))}
    told: dict[str, Any] = {"offsetTable": {"1": 6}}
    if names_its_end:
        told["logOffset"], ends["commitLogMaxOffset"] = len(log), "0"
    bodies = {
        **recorded(),
        RequestCode.GET_ALL_DELAY_OFFSET: json.dumps(told).encode(),
        RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps({"table": ends}).encode(),
    }
    broker, path, sending = Broker(bodies), tmp_path / "slave", threading.Event()

    def serve(connection: socket.socket, first: int) -> None:
        for frame in frames(log[: len(log) - 1], first, 4096):
            connection.sendall(frame)
        assert sending.wait(60)
        for frame in frames(log, len(log) - 1, 4096):
            connection.sendall(frame)

    file = path / "config" / "delayOffset.json"
    with (
        answering(broker) as address,
        PlainMaster(serve) as master,
        slave_of(path, master.address, address) as store,
    ):
        eventually(lambda: store.replica.end > 0)
        rounds = broker.asked.count(RequestCode.GET_ALL_DELAY_OFFSET)
        eventually(
            lambda: broker.asked.count(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) > rounds + 2
        )
        assert not file.exists()
        sending.set()
        eventually(file.exists)
        assert config_of(path, "delayOffset") == told
    assert store.stats()["commitLogFlushedOffset"] == len(log)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"offsetTable":7,"topicConfigTable":[],"dataVersion":{}}',
        b"\xff",
    ],
)
def test_wrong_tables_change_nothing(tmp_path: Path, body: bytes) -> None:
    broker, path = Broker(dict.fromkeys(TABLES, body)), tmp_path / "slave"
    with (
        answering(broker) as address,
        PlainMaster(lambda *_: None) as master,
        slave_of(path, master.address, address) as store,
    ):
        before = {t.name for t in store.topics}
        eventually(lambda: len(broker.asked) >= len(TABLES))
        assert {t.name for t in store.topics} == before
        assert not (path / "config" / "consumerOffset.json").exists()


def test_wrong_entries_are_left_out(tmp_path: Path) -> None:
    good = {"perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicName": "orders"}
    tables = {
        RequestCode.GET_ALL_TOPIC_CONFIG: {
            "dataVersion": {"counter": 1, "timestamp": 5},
            "topicConfigTable": {
                "orders": good, "../up": good, "many": {**good, "readQueueNums": 1 << 40},
                "text": "orders",
            },
        },
        RequestCode.GET_ALL_CONSUMER_OFFSET: {
            "offsetTable": {
                "orders@g": {"0": 5, "1": -1, "x": 3, "2": "4", "99999999": 1},
                "orders": {"0": 1}, "../up@g": {"0": 1}, "orders@a/b": {"0": 1}, "orders@h": 7,
            }
        },
        RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {"1": 6, "-2": 1, "x": 2, "3": "4"}},
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
            "dataVersion": {}, "subscriptionGroupTable": {"g": {"groupName": "g"}, "a b": {}},
        },
    }  # fmt: skip
    broker = Broker({code: json.dumps(table).encode() for code, table in tables.items()})
    path = tmp_path / "slave"
    with (
        answering(broker) as address,
        PlainMaster(lambda *_: None) as master,
        slave_of(path, master.address, address) as store,
    ):
        eventually(lambda: (path / "config" / "subscriptionGroup.json").exists())
        assert {t.name for t in store.topics} == {"orders"}
        offsets = config_of(path, "consumerOffset")["offsetTable"]
        assert offsets == value_of(b'{"orders@g":{0:5},"orders@h":{}}')
        assert config_of(path, "delayOffset")["offsetTable"] == value_of(b"{1:6}")
        groups = config_of(path, "subscriptionGroup")["subscriptionGroupTable"]
        assert groups == {"g": {"groupName": "g"}}


def test_a_broker_that_refuses_is_told_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rmqstore_spark.ha.master_broker._INTERVAL_S", 0.05)
    broker, path = Broker({}), tmp_path / "slave"
    with (
        answering(broker) as address,
        PlainMaster(lambda *_: None) as master,
        slave_of(path, master.address, address),
    ):
        eventually(lambda: broker.asked.count(RequestCode.GET_ALL_TOPIC_CONFIG) > 3)
        assert caplog.text.count(f"progress of the master {address} cannot be copied") == 1
        broker.bodies.update(recorded())
        eventually(lambda: (path / "config" / "subscriptionGroup.json").exists())


@pytest.mark.parametrize(
    "body", [b"{}", b'{"table":{}}', b'{"table":{"commitLogMinOffset":"-1"}}', b"[" * 100_000]
)
def test_a_broker_that_does_not_say_where_its_log_begins(body: bytes) -> None:
    with (
        answering(Broker({RequestCode.GET_BROKER_RUNTIME_INFO: body})) as address,
        pytest.raises(RmqStoreError, match=r"does not say where|cannot be read"),
    ):
        MasterBroker(StoreConfig(ha_master_remoting_address=address)).log_begin()
