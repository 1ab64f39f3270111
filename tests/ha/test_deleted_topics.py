"""Topics that the master deletes, and makes again: a follower keeps their generations apart."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.ha.master import Master
from rmqstore_spark.remoting.codec.codes import RequestCode
from tests.broker.broker import broker
from tests.ha.broker import Broker, answering
from tests.ha.peers import SMALL, PlainMaster, caught_up, frames, log_bytes, queue_files
from tests.ha.test_metadata import config_of, slave_of
from tests.support.messages.batches import rows_block, small_segments
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

OLD = [b"old%d" % n for n in range(80)]  # over two queues, with two files each


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slave look at the tables of its master all the time."""
    monkeypatch.setattr("rmqstore_spark.ha.master_broker._INTERVAL_S", 0.05)


def make_again(store: StoreWriter) -> None:
    """Delete the topic, and make it again with a message in one of its two queues."""
    store.delete_topic("orders")
    store.create_topic("orders", write_queue_nums=2)
    assert store.put(block_of([b"new"], queue_ids=[0])).ok
    store.flush()


def test_a_store_process_tells_its_slaves_what_was_deleted(tmp_path: Path) -> None:
    """Nothing else does, if a topic is made again before they look: not the queue without news."""
    paths = {name: tmp_path / name for name in ("master", "slave", "late")}
    with broker(paths["master"], **SMALL, ha_listen_port=0) as (source, address):
        master = Master(source)
        try:
            assert source.put(rows_block(OLD, ("orders",))).ok
            assert source.commit_offsets("billing", {"orders": {0: 9, 1: 9}}) == 2
            with slave_of(paths["slave"], master.address, address):
                file = paths["slave"] / "config" / "consumerOffset.json"
                eventually(lambda: file.exists() and b"billing" in file.read_bytes())
                eventually(lambda: queue_files(paths["slave"]) == queue_files(paths["master"]))
                make_again(source)
                wanted = queue_files(paths["master"])
                assert wanted.keys() == {"orders/0/00000000000000000000"}
                eventually(lambda: queue_files(paths["slave"]) == wanted)
                eventually(lambda: config_of(paths["slave"], "consumerOffset")["offsetTable"] == {})
            with slave_of(paths["late"], master.address, address) as late:
                caught_up(late, source.published_end)
                eventually(lambda: queue_files(paths["late"]) == wanted)
        finally:
            master.close()
    for name in ("slave", "late"):
        StoreWriter.open(paths[name], small_segments(), rebuild=True).close()
        assert queue_files(paths[name]) == wanted


def told(counter: int, end: int, *topics: str) -> dict[Any, bytes]:
    """What a broker of RocketMQ answers: its topics, and where its log ends."""
    config = {"perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
    table = {
        "dataVersion": {"counter": counter, "timestamp": counter},
        "topicConfigTable": {name: {**config, "topicName": name} for name in topics},
    }
    runtime = {"table": {"commitLogMinOffset": "0", "commitLogMaxOffset": str(end)}}
    return {
        RequestCode.GET_ALL_TOPIC_CONFIG: json.dumps(table).encode(),
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{}}',
        RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{}}',
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b"{}",
        RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps(runtime).encode(),
    }


class Log:
    """The log of a topic that is deleted and made again; a master sends it step by step."""

    def __init__(self, path: Path) -> None:
        with StoreWriter.open(path, small_segments()) as store:
            assert store.put(rows_block(OLD, ("orders",))).ok
            self.old_end = store.published_end
            make_again(store)
            self.data = log_bytes(path, 0, store.published_end)
            self.queues = queue_files(path)
        self._sent = threading.Condition()
        self._end = 0

    def send(self, end: int) -> None:
        """Let the master have its log up to an offset."""
        with self._sent:
            self._end = end
            self._sent.notify_all()

    def serve(self, connection: socket.socket, first: int) -> None:
        for data in self._pieces(connection, first):
            connection.sendall(data)

    def _pieces(self, connection: socket.socket, at: int) -> Iterator[bytes]:
        while at < len(self.data):
            with self._sent:
                while self._end <= at:
                    if not self._sent.wait(0.05) and connection.fileno() < 0:
                        return  # the test is over
                end = self._end
            yield from frames(self.data[:end], at, 4096)
            at = end


class Named:
    """The topics that a store has had since it was watched."""

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self.names: set[str] = set()

    def topics_changed(self) -> None:
        self.names |= {topic.name for topic in self._store.topics}


def rounds(peer: Broker, count: int) -> None:
    """Wait until a slave has looked so often again."""
    done = peer.asked.count(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) + count
    eventually(lambda: peer.asked.count(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) >= done)


def test_a_topic_that_leaves_a_brokers_table_is_deleted(tmp_path: Path) -> None:
    """Also what the log has of it before the broker told its table, and comes after that."""
    log, path = Log(tmp_path / "master"), tmp_path / "slave"
    half = len(OLD) // 2 * (log.old_end // len(OLD))
    peer = Broker(told(1, 0, "orders"))
    with (
        answering(peer) as address,
        PlainMaster(log.serve) as master,
        slave_of(path, master.address, address) as store,
    ):
        log.send(half)
        eventually(lambda: store.replica.end > half - 200)  # a record has less
        # As long as the newest record may be of a topic that was made since, it stays.
        peer.bodies.update(told(2, store.replica.end - 200, "bills"))
        rounds(peer, 3)
        assert queue_files(path)
        peer.bodies.update(told(2, log.old_end, "bills"))
        eventually(lambda: store.deleted_topics == {"orders": log.old_end})
        assert not queue_files(path)
        named = Named(store)
        store.topics.watch(named)
        log.send(log.old_end)
        caught_up(store, log.old_end)
        rounds(peer, 3)
        assert not queue_files(path)
        assert "orders" not in store.topics
        assert not named.names
        peer.bodies.update(told(3, len(log.data), "orders"))
        log.send(len(log.data))
        eventually(lambda: queue_files(path) == log.queues)
        rounds(peer, 3)
    StoreWriter.open(path, small_segments(), rebuild=True).close()
    assert queue_files(path) == log.queues


def test_a_master_that_lost_its_end_may_have_a_new_topic_there(tmp_path: Path) -> None:
    """The records that were deleted there are in no log any more."""
    log, path = Log(tmp_path / "master"), tmp_path / "slave"
    lost = len(log.data) + 10_000
    peer = Broker(told(1, lost, "orders"))
    with (
        answering(peer) as address,
        PlainMaster(log.serve) as master,
        slave_of(path, master.address, address) as store,
    ):
        log.send(log.old_end)
        caught_up(store, log.old_end)
        rounds(peer, 2)
        peer.bodies.update(told(2, lost, "bills"))
        eventually(lambda: store.deleted_topics == {"orders": lost})
        peer.bodies.update(told(3, len(log.data), "orders"))
        rounds(peer, 2)
        assert not queue_files(path)
        master.cut()
        eventually(lambda: master.connections == 2)
        log.send(len(log.data))
        eventually(lambda: queue_files(path) == log.queues)


@pytest.mark.parametrize("starts_again", [False, True])
def test_a_broker_that_comes_back_with_an_older_table_deletes_nothing(
    tmp_path: Path, starts_again: bool
) -> None:
    """Also if its slave starts again meanwhile."""
    log, path = Log(tmp_path / "master"), tmp_path / "slave"
    peer = Broker(told(7, log.old_end, "bills", "orders"))
    with (
        answering(peer) as address,
        PlainMaster(log.serve) as master,
        ExitStack() as slave,
    ):
        store = slave.enter_context(slave_of(path, master.address, address))
        log.send(log.old_end)
        caught_up(store, log.old_end)
        rounds(peer, 3)
        files = queue_files(path)
        if starts_again:
            slave.close()
        peer.bodies.update(told(6, log.old_end, "bills"))
        if starts_again:
            store = slave.enter_context(slave_of(path, master.address, address))
        eventually(lambda: "orders" not in store.topics)
        peer.bodies.update(told(8, log.old_end, "bills", "others"))
        eventually(lambda: "others" in store.topics)
        assert queue_files(path) == files
        # Made again, it is a topic like any other.
        peer.bodies.update(told(9, log.old_end, "orders"))
        eventually(lambda: "orders" in store.topics)
        peer.bodies.update(told(10, log.old_end, "bills"))
        eventually(lambda: not queue_files(path))
