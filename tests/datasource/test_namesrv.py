"""Reading through name servers: store processes by their endpoints, other brokers by pulls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.sources.name_servers import routed
from rmqstore_spark.datasource.sources.pulled_store import PulledStore
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import (
    DataLossError,
    OptionError,
    RmqStoreError,
    ServiceError,
    TopicNotFoundError,
)
from rmqstore_spark.reader.options import QueueRange
from rmqstore_spark.reader.plan import PlanLimits
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.wire.endpoint import announced_endpoint, parse_endpoint
from tests.broker.broker import SMALL, Served, name_server, route, running_broker
from tests.client.tampering import tampering
from tests.datasource.driving import Stream, batch_rows, plan_batch, read_all, rows_in, source
from tests.namesrv.registering import registration, unregistration
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.ports import free_port
from tests.support.processes.serving import served, serving_brokers_clients
from tests.support.waiting import eventually, next_millisecond


def put(store: StoreWriter, count: int, topic: str = "orders", seed: int = 1) -> None:
    for block in encoded_traffic(Traffic(count, topics={topic: 3}, seed=seed)):
        assert store.put(block).ok
    store.flush()


def topic_with(broker: Served, servers: str, topic: str, count: int) -> StoreWriter:
    """Create a topic with messages, and wait until it is in the route."""
    broker.store.create_topic(topic, write_queue_nums=3)
    put(broker.store, count, topic)
    eventually(lambda: route(servers, topic))
    return broker.store


def asking(servers: str) -> ServerGroup:
    """A client of a name server."""
    return ServerGroup(
        Addresses((servers,), has_master=False), "The name server", 20, 20, ClientIdentity()
    )


def client_of(address: str) -> BrokerClient:
    return BrokerClient("b", Addresses((address,), has_master=True), 20, 20, ClientIdentity())


@contextmanager
def registered(path: Path, servers: str, **settings: Any) -> Iterator[Served]:
    """A broker without an endpoint, as RocketMQ's are, when its topics are in the route."""
    config = StoreConfig(
        **{**SMALL, "listen_port": free_port(), "namesrv_addr": servers, **settings}
    )
    with StoreWriter.open(path, config) as store, running_broker(store) as runner:
        found = Served(store, runner.address)
        topic_with(found, servers, "orders", 1000)
        yield found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with name_server(tmp_path_factory.mktemp("namesrv")) as address:
        yield address


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, servers: str) -> Iterator[Served]:
    with registered(tmp_path_factory.mktemp("broker") / "store", servers) as found:
        yield found


@pytest.fixture
def follow(servers: str) -> Iterator[Callable[..., Stream]]:
    """Give `follow(checkpoint, **options)`: a stream by the route, which the test's end stops."""
    followed: list[Stream] = []

    def start(checkpoint: list[str] | None = None, **options: Any) -> Stream:
        given = {"namesrvAddr": servers, **options}
        followed.append(Stream("", checkpoint, **given))
        return followed[-1]

    yield start
    for stream in followed:
        stream.reader.stop()


def as_pulled(rows: list[dict[str, Any]], name: str = "broker-a") -> list[dict[str, Any]]:
    """Rows of the path, as they are called with the broker's name, queue by queue."""
    rows = [{**row, "brokerName": name} for row in rows]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tags": "TagA || TagB"},
        {"tags": '["TagA", "no such tag", "a||b"]'},
        {"startingOffsets": json.dumps({"orders": {"0": 7, "1": -2, "2": 100}})},
        {"endingOffsets": json.dumps({"orders": {"0": 7, "1": -1, "2": 100}})},
        {"maxRecordsPerPartition": 100},
    ],
)
def test_pulled_rows_are_those_of_the_path(
    broker: Served, servers: str, options: dict[str, Any]
) -> None:
    expected = batch_rows(broker.store.path, subscribe="orders", **options)
    found = batch_rows("", namesrvAddr=servers, subscribe="orders", **options)
    assert found == as_pulled(expected)
    assert found


def test_without_other_options_all_topics_are_pulled(broker: Served, servers: str) -> None:
    broker.store.create_topic("without_messages", write_queue_nums=1)
    topic_with(broker, servers, "ordinary", 10)
    expected = as_pulled(batch_rows(broker.store.path))
    assert batch_rows("", namesrvAddr=servers) == expected
    wanted = [row for row in expected if row["topic"].startswith("ord")]
    assert batch_rows("", namesrvAddr=servers, subscribePattern="ord.*") == wanted
    _, partitions = plan_batch("", namesrvAddr=servers, assign='{"orders":[1]}')
    assert [type(one).__name__ for one in partitions] == ["PulledPartition"]


def test_times_are_those_of_the_path(broker: Served, servers: str) -> None:
    store = topic_with(broker, servers, "timed", 90)
    for seed in range(2, 8):
        next_millisecond()
        put(store, 90, "timed", seed=seed)
    rows = batch_rows(store.path, subscribe="timed")
    times = sorted({int(row["storeTimestamp"].timestamp() * 1000) for row in rows})
    assert len(times) > 3
    for first in [times[0] - 1, times[0], times[1] - 1, times[len(times) // 2], times[-1]]:
        options: dict[str, Any] = {
            "subscribe": "timed",
            "startingTimestamp": first,
            "endingTimestamp": times[-1],
        }
        found = batch_rows("", namesrvAddr=servers, **options)
        assert found == as_pulled(batch_rows(store.path, **options))
    with pytest.raises(OptionError, match="has no message stored at or after"):
        batch_rows("", namesrvAddr=servers, subscribe="timed", startingTimestamp=times[-1] + 1)


def test_large_ranges_become_several_partitions(broker: Served, servers: str) -> None:
    options: dict[str, Any] = {
        "namesrvAddr": servers,
        "subscribe": "orders",
        "maxBytesPerPartition": "16k",
    }
    _, partitions = plan_batch("", **options)
    size = sum(row["storeSize"] for row in batch_rows(broker.store.path, subscribe="orders"))
    assert size / (16 << 10) <= len(partitions) <= 2 * size / (16 << 10)


def test_a_stream_pulls_in_micro_batches_and_is_restarted(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    store = topic_with(broker, servers, "streamed", 1000)
    options: dict[str, Any] = {
        "subscribe": "streamed",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 400,
    }
    checkpoint: list[str] = []
    stream = follow(checkpoint, **options)
    batches = stream.drain()
    assert [len(rows) for rows in batches] == [400, 400, 200]
    put(store, 300, "streamed", seed=2)
    stream.clock.sleep(1)
    batches += stream.drain()
    stream.reader.stop()
    put(store, 200, "streamed", seed=3)
    again = follow(checkpoint, **options)
    batches += again.drain()
    again.reader.stop()
    rows = [row for batch in batches for row in batch]
    assert as_pulled(rows) == as_pulled(batch_rows(store.path, subscribe="streamed"))
    # A stream on the files of the store continues from the same checkpoint, whatever its name.
    path = Stream(store.path, checkpoint, **options)
    assert path.drain() == []
    put(store, 100, "streamed", seed=4)
    assert sum(map(len, path.drain())) == 100


def test_a_stream_up_to_now_and_a_limit_of_bytes(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    store = topic_with(broker, servers, "limited", 600)
    options: dict[str, Any] = {
        "subscribe": "limited",
        "startingOffsets": "earliest",
        "maxBytesPerTrigger": "64k",
    }
    stream = follow(**options)
    stream.prepare_available_now()
    put(store, 100, "limited", seed=2)
    batches = stream.drain()
    sizes = [sum(row["storeSize"] for row in rows) for rows in batches]
    assert sum(map(len, batches)) == 600
    assert len(sizes) > 2
    assert max(sizes) < 80 << 10


def test_a_stream_finds_new_topics(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    topic_with(broker, servers, "new-1", 10)
    stream = follow(startingOffsets="earliest", subscribePattern="new-.*")
    assert sum(map(len, stream.drain())) == 10
    topic_with(broker, servers, "new-2", 20)
    stream.clock.sleep(20)
    rows = stream.next_batch()
    assert rows is not None
    assert [row["topic"] for row in rows] == ["new-2"] * 20
    before = stream.clock.now
    assert stream.next_batch() is None
    assert stream.clock.now - before < 1


def test_progress_is_that_of_a_consumer_group(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    store = topic_with(broker, servers, "grouped", 1000)
    options: dict[str, Any] = {
        "namesrvAddr": servers,
        "subscribe": "grouped",
        "startingOffsets": "group:lake",
    }
    stream = follow(commitGroup="lake", maxOffsetsPerTrigger=400, **options)
    assert [len(rows) for rows in stream.drain()] == [400, 400, 200]
    stream.reader.stop()
    reached = [store.consumer_offsets.get("lake", "grouped", number) for number in range(3)]
    assert reached == [334, 333, 333]
    put(store, 30, "grouped", seed=2)
    assert len(batch_rows("", **options)) == 30


def test_a_topic_that_was_recreated_is_a_loss(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    store = topic_with(broker, servers, "recreated", 900)
    options: dict[str, Any] = {
        "namesrvAddr": servers,
        "subscribe": "recreated",
        "startingOffsets": "earliest",
    }
    checkpoint: list[str] = []
    stream = follow(checkpoint, **options)
    stream.drain()
    stream.reader.stop()
    store.delete_topic("recreated")
    topic_with(broker, servers, "recreated", 600)
    with pytest.raises(DataLossError, match="was cut, or deleted and recreated"):
        follow(checkpoint, **options).drain()
    again = follow(checkpoint, failOnDataLoss=False, **options)
    assert sum(map(len, again.drain())) == 600


def test_messages_that_have_expired_are_a_loss(tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as servers,
        registered(tmp_path / "store", servers, mapped_file_size_commit_log=64 << 10) as broker,
    ):
        options: dict[str, Any] = {"namesrvAddr": servers, "assign": '{"orders":[0]}'}
        reader, partitions = plan_batch("", **options)
        lenient = plan_batch("", failOnDataLoss=False, **options)
        start: dict[str, Any] = {"startingOffsets": '{"orders":{"0":0}}'}
        store = broker.store
        put(store, 100, seed=2)
        store.expire(2**62)
        eventually(lambda: not store.expirable(2**62).is_working)
        left = len(batch_rows("", **options))
        assert 0 < left < 350
        with pytest.raises(DataLossError, match="have expired"):
            rows_in(read_all(reader, partitions))
        assert 0 < len(rows_in(read_all(*lenient))) < 334
        with pytest.raises(DataLossError, match="have expired"):
            batch_rows("", **options, **start)
        assert len(batch_rows("", failOnDataLoss=False, **options, **start)) == left


def test_several_brokers_and_slaves_of_a_master_that_is_gone(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    store = topic_with(broker, servers, "copied", 60)
    gone = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {
        "namesrvAddr": servers,
        "subscribe": "copied",
        "replicaTimeout": "1s",
    }
    with (
        tampering(broker.address, lambda _, answer: answer) as slave,
        closing(asking(servers)) as asked,
    ):

        def tell(command: Command) -> None:
            assert asked.ask(command).command.code == 0

        master = registration(["copied"], name="broker-b", address=gone)
        tell(master)
        tell(registration(name="broker-b", broker_id=1, address=slave))
        expected = batch_rows(store.path, subscribe="copied")
        both = as_pulled(expected) + as_pulled(expected, "broker-b")
        found = batch_rows("", **options)
        assert sorted(found, key=lambda row: row["brokerName"]) == both
        options["startingOffsets"] = "earliest"
        stream = follow(requestTimeout="1s", **options)
        with pytest.raises(ServiceError, match=f"{gone}.* does not answer"):
            stream.next_batch()
        tell(unregistration(master))
        assert len(batch_rows("", **options)) == 120
        stream = follow(**options)
        with pytest.raises(ServiceError, match="has no master now, only slaves"):
            stream.next_batch()


@pytest.mark.threat("What a broker sends")
def test_offsets_beyond_reason_do_not_become_partitions(broker: Served) -> None:
    def lie(asked: Command, answer: Command) -> Command:
        if asked.code == RequestCode.GET_MAX_OFFSET:
            answer.ext["offset"] = str(2**62)
        return answer

    with (
        tampering(broker.address, lie) as address,
        closing(PulledStore("b", client_of(address))) as store,
    ):
        end = store.queue("orders", 0).max_offset
        ranges = [QueueRange("orders", 0, 0, end)]
        with pytest.raises(OptionError, match=f"claims to have {end} messages"):
            store.cut(ranges, PlanLimits(max_records=1000))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keys": "order-1"}, "keys needs the index files.*broker-a.*pulled.*endpoint"),
        ({"planBy": "commitlog"}, "planBy=commitlog needs the log.*Remove planBy"),
        ({"subscribe": "nothing"}, "no route for nothing"),
        ({"subscribePattern": "absent.*"}, "matches no topic"),
    ],
)
def test_what_a_pull_cannot_do_is_refused(
    broker: Served, servers: str, options: dict[str, Any], text: str
) -> None:
    assert broker
    with pytest.raises(RmqStoreError, match=text):
        batch_rows("", namesrvAddr=servers, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/x"}, "path and namesrvAddr contradict"),
        ({"endpoint": "rmq://127.0.0.1:1"}, "endpoint and namesrvAddr contradict"),
        ({"brokerNames": "a"}, "brokerNames and namesrvAddr contradict"),
        ({"pageCache": "spare"}, "pageCache and namesrvAddr contradict"),
        (
            {"namesrvAddr": None, "path": "/x", "aclFile": "/k"},
            "aclFile is .* needs .*endpoint or namesrvAddr",
        ),
        (
            {"namesrvAddr": None, "endpoint": "rmq://127.0.0.1:1", "tlsEnable": True},
            "tlsEnable is .* needs .*namesrvAddr",
        ),
        ({"namesrvAddr": "somewhere"}, "must be HOST:PORT"),
        (
            {"namesrvAddr": "127.0.0.1:1", "requestTimeout": "200ms"},
            "name server .* does not answer",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    def plan() -> None:
        given = {"namesrvAddr": "127.0.0.1:9876", **options}
        made = source("", {name: text for name, text in given.items() if text is not None})
        made.reader(full_schema()).partitions()

    with pytest.raises(RmqStoreError, match=text):
        plan()


def test_a_store_process_is_read_through_its_endpoint(tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as servers,
        served(tmp_path / "store", clients="all", namesrv_addr=servers) as here,
        serving_brokers_clients(here) as runner,
    ):
        topic_with(Served(here.store, runner.address), servers, "orders", 500)
        told = route(servers, "orders")
        assert told["filterServerTable"] == {runner.address: [here.endpoint]}
        _, partitions = plan_batch("", namesrvAddr=servers, subscribe="orders", keys="order-1")
        assert {type(one).__name__ for one in partitions} == {"StorePartition"}
        expected = as_pulled(batch_rows(here.store.path, subscribe="orders"))
        found = batch_rows("", namesrvAddr=servers, subscribe="orders", planBy="queue")
        assert found == expected
        stream = Stream("", namesrvAddr=servers, startingOffsets="earliest", commitGroup="lake")
        assert as_pulled([row for rows in stream.drain() for row in rows]) == expected
        stream.reader.stop()
        # It has none of these topics yet, and is not pulled from for that.
        later = parse_options({"namesrvAddr": servers, "subscribePattern": "later"}, True)
        assert [type(group) for group in routed(later)] == [tuple]


@pytest.mark.parametrize(
    ("endpoints", "address", "announced"),
    [
        (["rmq://127.0.0.1:10921"], "127.0.0.1", "rmq://127.0.0.1:10921"),
        (["rmq://127.0.0.1:10921"], "10.0.0.1", ""),
        (["rmqs://0.0.0.0:10921"], "10.0.0.1", "rmqs://10.0.0.1:10921"),
        (["rmqs://[::]:10921"], "fd00::1", "rmqs://[fd00::1]:10921"),
        (["unix:/run/s", "rmqs://10.0.0.7:1"], "10.0.0.1", "rmqs://10.0.0.7:1"),
        (["unix:/run/s"], "127.0.0.1", ""),
    ],
)
def test_the_endpoint_that_is_announced(endpoints: list[str], address: str, announced: str) -> None:
    assert announced_endpoint(map(parse_endpoint, endpoints), address) == announced


def test_a_broker_that_no_name_server_knows_stops_a_stream_that_has_read_it(
    broker: Served, servers: str, follow: Callable[..., Stream]
) -> None:
    """Its queues would count as deleted, and be read again when it comes back."""
    store = topic_with(broker, servers, "away", 60)
    options: dict[str, Any] = {"subscribe": "away", "startingOffsets": "earliest"}
    with (
        tampering(broker.address, lambda _, answer: answer) as other,
        closing(asking(servers)) as asked,
    ):
        second = registration(["away"], name="broker-b", address=other)
        assert asked.ask(second).command.code == 0
        checkpoint: list[str] = []
        assert len(follow(checkpoint, **options).drain()[0]) == 120
        assert asked.ask(unregistration(second)).command.code == 0
        with pytest.raises(ServiceError, match="No name server knows the broker broker-b now"):
            follow(checkpoint, **options).next_batch()
        put(store, 6, "away", seed=3)
        left = follow(checkpoint, failOnDataLoss=False, **options)
        assert len(left.drain()[0]) == 6
        assert asked.ask(second).command.code == 0
        assert len(follow(checkpoint, **options).drain()[0]) == 6


def test_what_any_name_server_knows_counts(broker: Served, servers: str, tmp_path: Path) -> None:
    """One that has just started knows no broker yet; and one does not answer."""
    topic_with(broker, servers, "known", 10)
    with name_server(tmp_path) as new:
        for several in (f"{new};{servers}", f"127.0.0.1:{free_port()};{servers}"):
            found = batch_rows("", namesrvAddr=several, subscribe="known")
            assert len(found) == 10
        with pytest.raises(TopicNotFoundError, match="no route for"):
            batch_rows("", namesrvAddr=new, subscribe="known")
