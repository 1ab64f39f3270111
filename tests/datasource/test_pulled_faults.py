"""Brokers that are pulled from and fail, move, or have lost messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.datasource.sources.pulled_store import PulledStore
from rmqstore_spark.errors import DataLossError, ServiceError
from rmqstore_spark.reader.options import QueueRange, QueueSplit, ReadOptions
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, broker, name_server, records_in
from tests.client.tampering import tampering
from tests.datasource.driving import Stream, batch_rows
from tests.namesrv.registering import registration
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

QUEUES = 3


class Pass:
    """What stands between clients and the broker: it can fail, and counts what is pulled.

    Attributes:
        is_dead: whether each request ends its connection.
        busy: how many requests it refuses first, since it is too busy.
        hidden: how many messages at the end of each queue it does not have yet.
        pulls: how many pulls it got.
    """

    def __init__(self) -> None:
        self.is_dead = False
        self.busy = self.hidden = self.pulls = 0

    def __call__(self, asked: Command, answer: Command) -> Command | None:
        if self.is_dead:
            return None
        self.pulls += asked.code == RequestCode.PULL_MESSAGE
        if self.busy:
            self.busy -= 1
            return answer.answer(ResponseCode.SYSTEM_BUSY, "busy")
        if asked.code == RequestCode.GET_MAX_OFFSET:
            answer.ext["offset"] = str(int(answer.ext["offset"]) - self.hidden)
        return answer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with broker(tmp_path / "store") as found:
        found.store.create_topic("orders", write_queue_nums=QUEUES)
        put(found, 300)
        yield found


def put(served: Served, count: int, seed: int = 1) -> None:
    traffic = Traffic(count, topics={"orders": QUEUES}, seed=seed)
    for block in encoded_traffic(traffic):
        assert served.store.put(block).ok
    served.store.flush()


class Cluster:
    """A name server at which brokers are registered that are all the same store.

    Args:
        served: the store.
        servers: the address of the name server.
        running: ends what is started.
    """

    def __init__(self, served: Served, servers: str, running: ExitStack) -> None:
        self.servers = servers
        self._served = served
        self._running = running
        addresses = Addresses((servers,), has_master=False)
        asked = ServerGroup(addresses, "The name server", 20, 20, ClientIdentity())
        self._asked = running.enter_context(closing(asked))

    def add(self, name: str, broker_id: int = 0) -> tuple[Pass, str]:
        """Start a process of a broker; return what stands before it, and its address."""
        between = Pass()
        address = self._running.enter_context(tampering(self._served.address, between))
        told = registration(["orders"], name=name, broker_id=broker_id, address=address)
        assert self._asked.ask(told).command.code == 0
        return between, address

    def follow(self, checkpoint: list[str] | None = None, **options: Any) -> Stream:
        given = {
            "namesrvAddr": self.servers,
            "subscribe": "orders",
            "startingOffsets": "earliest",
        }
        stream = Stream("", checkpoint, **{**given, **options})
        self._running.callback(stream.reader.stop)
        return stream


@pytest.fixture
def cluster(served: Served, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as running:
        servers = running.enter_context(name_server(tmp_path))
        yield Cluster(served, servers, running)


def brokers_of(rows: list[dict[str, Any]] | None) -> dict[str, int]:
    """How many rows came from each broker."""
    found: dict[str, int] = {}
    for row in rows or []:
        found[row["brokerName"]] = found.get(row["brokerName"], 0) + 1
    return found


def test_a_batch_is_planned_by_the_master_though_a_slave_answers_sooner(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    master, _ = cluster.add("broker-a")
    slave, _ = cluster.add("broker-a", 1)
    slave.hidden = 10
    master.busy = 2
    options: dict[str, Any] = {"namesrvAddr": cluster.servers, "subscribe": "orders"}
    with caplog.at_level(logging.WARNING):
        assert len(batch_rows("", **options)) == 300
        assert not caplog.messages
        master.is_dead = True
        assert len(batch_rows("", replicaTimeout="1s", **options)) == 300 - QUEUES * 10
    assert sum("its master does not answer" in one for one in caplog.messages) >= 1


def test_a_stream_continues_without_a_broker_that_does_not_answer_and_says_so(
    cluster: Cluster, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add("broker-a")
    other, address = cluster.add("broker-b")
    checkpoint: list[str] = []
    stream = cluster.follow(checkpoint, commitGroup="lake", replicaTimeout="2s")
    assert brokers_of(stream.next_batch()) == {"broker-a": 300, "broker-b": 300}

    other.is_dead = True
    with caplog.at_level(logging.WARNING):
        for seed in (2, 3):
            put(served, 60, seed)
            stream.clock.sleep(5)
            assert brokers_of(stream.next_batch()) == {"broker-a": 60}
        assert stream.next_batch() is None
    told = [one for one in caplog.messages if "continues without new messages" in one]
    assert len(told) == 1
    assert "broker-b" in told[0]
    assert address in told[0]

    other.is_dead = False
    stream.clock.sleep(60)
    assert brokers_of(stream.next_batch()) == {"broker-b": 120}
    stream.reader.stop()
    assert brokers_of(cluster.follow(checkpoint).next_batch()) == {}


def test_a_stream_of_which_no_broker_answers_fails(cluster: Cluster) -> None:
    only, address = cluster.add("broker-a")
    stream = cluster.follow(replicaTimeout="2s", requestTimeout="3s")
    stream.next_batch()
    only.is_dead = True
    stream.clock.sleep(5)
    assert stream.next_batch() is None
    stream.clock.sleep(5)
    with pytest.raises(ServiceError, match=f"broker-a \\({address}\\) does not answer"):
        stream.next_batch()


def test_a_broker_that_has_moved_is_found_again(cluster: Cluster, served: Served) -> None:
    first, _ = cluster.add("broker-a")
    stream = cluster.follow(commitGroup="lake")
    assert len(stream.next_batch() or []) == 300
    # What was the master can be a slave at the same address, and answer.
    second, _ = cluster.add("broker-a")
    put(served, 90, 2)
    first.pulls = 0
    stream.clock.sleep(31)
    assert len(stream.next_batch() or []) == 90
    assert second.pulls > first.pulls == 0

    put(served, 30, 3)
    stream.clock.sleep(5)
    planned = stream.plan_next()
    second.is_dead = True
    cluster.add("broker-a")
    assert len(stream.read(planned)) == 30  # the tasks know the old address
    stream.committed += 1
    put(served, 60, 4)
    stream.clock.sleep(5)
    assert len(stream.next_batch() or []) == 60
    stream.clock.sleep(5)
    assert stream.next_batch() is None
    reached = [served.store.consumer_offsets.get("lake", "orders", n) for n in range(QUEUES)]
    assert sum(reached) == 480


def test_a_micro_batch_asks_for_two_messages_of_each_queue(
    cluster: Cluster, served: Served
) -> None:
    between, _ = cluster.add("broker-a")
    stream = cluster.follow()
    stream.next_batch()
    put(served, 60, 2)
    stream.clock.sleep(5)
    between.pulls = 0
    planned = stream.plan_next()
    assert between.pulls == 2 * QUEUES
    assert len(stream.read(planned)) == 60


@contextmanager
def expired(served: Served, count: int, longest: list[int]) -> Iterator[PulledStore]:
    """A broker whose first messages have expired, and which passes over them without a word.

    RocketMQ's does so until it cleans its queues.

    Args:
        served: the broker.
        count: how many messages have expired.
        longest: gets the length of each tag expression.
    """
    with closing(client_of(served.address)) as client:
        first = client.message(("orders", 0), count).data

    def change(asked: Command, answer: Command) -> Command:
        if asked.code != RequestCode.PULL_MESSAGE:
            return answer
        longest.append(len(asked.ext["subscription"]))
        if asked.ext["maxMsgNums"] == "1" and int(asked.ext["queueOffset"]) < count:
            answer.body = first
            answer.ext["nextBeginOffset"] = str(count + 1)
        elif asked.ext["subscription"] != "*":
            there = [one for one in records_in(answer.body) if offset_of(one) >= count]
            answer.body = b"".join(there)
            if not there:
                answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return answer

    with (
        tampering(served.address, change) as address,
        closing(PulledStore("b", client_of(address))) as store,
    ):
        yield store


def offset_of(record: bytes) -> int:
    return int.from_bytes(record[20:28], "big")


def client_of(address: str) -> BrokerClient:
    return BrokerClient("b", Addresses((address,), has_master=True), 20, 20, ClientIdentity())


def test_tags_do_not_hide_that_messages_have_expired(served: Served) -> None:
    split = QueueSplit(QueueRange("orders", 0, 0, 100), 1)
    few, many = frozenset({"TagA", "TagB"}), frozenset(f"Tag{n}" for n in range(5000)) | {"TagA"}
    lengths: list[int] = []
    with expired(served, 40, lengths) as store:
        store.look([("orders", 0)])
        assert store.queue("orders", 0).min_offset == 40
        assert store.queue("orders", 0).max_offset == 100
        columns = ("queueOffset", "tags")
        with pytest.raises(DataLossError, match="40 messages from offset 0 on have expired"):
            list(store.read(split, ReadOptions(columns=columns, tags=few)))
        lenient = ReadOptions(columns=columns, tags=few, fail_on_data_loss=False)
        found = [row for batch in store.read(split, lenient) for row in batch.to_pylist()]
        assert {row["tags"] for row in found} == few
        assert min(row["queueOffset"] for row in found) >= 40
        rest = QueueSplit(QueueRange("orders", 0, 40, 100), 1)
        again = list(store.read(rest, ReadOptions(columns=columns, tags=many)))
        assert {tag for batch in again for tag in batch.column("tags").to_pylist()} == {"TagA"}
    assert max(lengths) < 5000


def test_an_end_at_a_group_that_has_read_nothing_reads_nothing(
    cluster: Cluster, served: Served
) -> None:
    cluster.add("broker-a")
    served.store.groups.create("idle")
    offsets = '{"orders":{"0":5,"1":5,"2":5}}'
    found = batch_rows(
        "",
        namesrvAddr=cluster.servers,
        subscribe="orders",
        startingOffsets=offsets,
        endingOffsets="group:idle",
    )
    assert found == []
