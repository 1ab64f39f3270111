"""Writing through name servers: to brokers over RocketMQ's protocol, and to store processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from rmqstore_spark.client.brokers.routes import PublishRoutes
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_sink_options
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.commit import Place, TaskDone
from rmqstore_spark.datasource.sink.encode import RowEncoder
from rmqstore_spark.datasource.sink.requests import BrokerRequests
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.datasource.sink.writers import RmqStoreStreamWriter, run_task
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RmqStoreError, RowError
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.access.identity import ClientIdentity
from tests.broker.broker import SMALL, name_server, route, running_broker
from tests.datasource.sink.test_sink_columns import fields
from tests.support.processes.ports import free_port
from tests.support.processes.serving import served, serving_brokers_clients
from tests.support.waiting import eventually

QUERY = "6ad3bb2e-6d3f-4e0c-9b0c-3f9a36b1d0aa"
Row = dict[str, Any]


class Registered:
    """A store that is a broker without an endpoint, as RocketMQ's are."""

    def __init__(self, store: StoreWriter) -> None:
        self.store = store
        self._opened = ExitStack()
        self._opened.enter_context(running_broker(store))

    def close(self) -> None:
        """Stop serving."""
        self._opened.close()

    def rows(self) -> list[Row]:
        """What it holds, properties as dicts."""
        self.store.flush()
        return rows_in(self.store.path)


def rows_in(path: str | Path) -> list[Row]:
    with Store.open(path) as store:
        rows: list[Row] = [row for part in store.scan() for row in part.to_pylist()]
    return [{**row, "properties": dict(row["properties"])} for row in rows]


def is_known(servers: str, count: int) -> bool:
    """Whether so many brokers have the topic."""
    told = route(servers, "orders")
    return told is not None and len(told["brokerDatas"]) == count


@contextmanager
def registered(
    folder: Path, servers: str, *names: str, **settings: Any
) -> Iterator[list[Registered]]:
    """Brokers that have the topic `orders`, in two queues."""
    with ExitStack() as stack:
        found = []
        for name in names:
            given = {"broker_name": name, "namesrv_addr": servers, **settings}
            config = StoreConfig(**{**SMALL, "listen_port": free_port(), **given})
            store = stack.enter_context(StoreWriter.open(folder / name, config))
            store.create_topic("orders", write_queue_nums=2)
            found.append(Registered(store))
            stack.callback(found[-1].close)
        eventually(
            lambda: (
                len((route(servers, "orders") or {"brokerDatas": ()})["brokerDatas"]) == len(names)
            )
        )
        yield found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with name_server(tmp_path_factory.mktemp("namesrv")) as address:
        yield address


def planned(servers: str, schema: StructType, streaming: bool = True, **given: str) -> SinkOptions:
    options = parse_sink_options({"namesrvAddr": servers, **given}, streaming)
    options = find_targets(options, schema, streaming=streaming)
    made: SinkOptions = pickle.loads(pickle.dumps(options))
    return made


def write(
    options: SinkOptions,
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
    batch: int = 0,
) -> TaskDone:
    place = Place(0, QUERY, batch)
    columns = find_columns(schema, options.messages)
    return run_task(options, columns, batches, place, batch, place.micro_batch)


def bodies(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"body": [str(number) for number in numbers]})


def test_a_broker_that_fails_half_way_and_a_task_that_is_run_again(
    servers: str, tmp_path: Path
) -> None:
    schema = fields("body string")
    with registered(tmp_path, servers, "broker-a", "broker-b") as brokers:
        options = planned(servers, schema, topic="orders", requestTimeout="5s")
        assert options.target.to_brokers
        assert not options.delivery.exactly_once

        def rows() -> Iterator[pa.RecordBatch]:
            for first in range(0, 4000, 500):
                if first == 2000:
                    brokers[1].close()
                yield bodies(*range(first, first + 500))

        assert write(options, schema, rows()).rows == 4000
        sizes = [len(broker.rows()) for broker in brokers]
        assert sizes[1] < 1200
        write(options, schema, rows())
        write(options, schema, iter([bodies(7)]), batch=1)
        found = [row for broker in brokers for row in broker.rows()]
        keys: dict[str, set[str]] = {}
        for row in found:
            keys.setdefault(row["body"].decode(), set()).add(row["uniqKey"])
        assert set(keys) == {str(number) for number in range(4000)}
        assert len(found) >= 8001
        # Each row has an id of its own, and the same one whenever its batch is written.
        assert {body: len(ids) for body, ids in keys.items() if len(ids) > 1} == {"7": 2}
        assert len(set().union(*keys.values())) == 4001


def test_the_columns_of_a_message(servers: str, tmp_path: Path) -> None:
    schema = fields(
        "body binary", "topic string", "tags string", "keys array<string>", "queueId bigint",
        "properties map<string,string>", "flag int", "bornTimestamp bigint", "delayTimeLevel int",
        "reconsumeTimes int", "uniqKey string",
    )  # fmt: skip
    plain: Row = {
        "topic": "orders", "tags": "TagA", "keys": ["k1", "k2"], "queueId": 1, "flag": 7,
        "properties": [("city", "Köln")], "bornTimestamp": 1_700_000_000_000,
        "delayTimeLevel": 0, "reconsumeTimes": 0, "uniqKey": None,
    }  # fmt: skip
    given = [
        *({**plain, "body": body} for body in (b"1", b"2")),
        {**plain, "body": b"delayed", "delayTimeLevel": 2},
        *({**plain, "body": body} for body in (b"3", b"4")),
        {**plain, "body": b"consumed", "reconsumeTimes": 3},
        *({**plain, "body": body} for body in (b"5", b"6")),
        {**plain, "body": b"later", "bornTimestamp": 1_700_000_000_001, "uniqKey": "mine"},
        *(
            {**plain, "body": body, "topic": "%RETRY%group", "queueId": 0}
            for body in (b"retry", b"again")
        ),
        {**plain, "body": b"created", "topic": "created", "queueId": 3},
    ]
    kinds = pa.schema(
        {
            "body": pa.binary(), "topic": pa.string(), "tags": pa.string(),
            "keys": pa.list_(pa.string()), "queueId": pa.int64(),
            "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int32(),
            "bornTimestamp": pa.int64(), "delayTimeLevel": pa.int32(),
            "reconsumeTimes": pa.int32(), "uniqKey": pa.string(),
        }
    )  # fmt: skip
    with registered(tmp_path, servers, "broker-c", message_delay_level="1h 1h") as (broker,):
        broker.store.create_topic("%RETRY%group", write_queue_nums=1)
        eventually(lambda: route(servers, "%RETRY%group"))
        options = planned(servers, schema, queueSelector="column", preserve="true")
        batch = pa.RecordBatch.from_pylist(given, schema=kinds)
        write(options, schema, iter([batch]))
        found = {row["body"]: row for row in broker.rows()}
        assert len(found) == len(broker.rows()) == len(given)
        for row in given:
            got = found[row["body"]]
            is_delayed = row["delayTimeLevel"] > 0
            assert got["topic"] == ("SCHEDULE_TOPIC_XXXX" if is_delayed else row["topic"])
            assert is_delayed or got["queueId"] == row["queueId"]
            assert (got["tags"], got["keys"], got["flag"]) == ("TagA", ["k1", "k2"], 7)
            assert got["bornTimestamp"] == datetime.fromtimestamp(
                row["bornTimestamp"] / 1000, timezone.utc
            )
            assert got["properties"]["city"] == "Köln"
            assert got["reconsumeTimes"] == row["reconsumeTimes"]
        assert found[b"delayed"]["properties"]["DELAY"] == "2"
        assert found[b"later"]["uniqKey"] == "mine"
        encoder = RowEncoder(
            options.messages,
            find_columns(schema, options.messages),
            BrokerRequests(PublishRoutes([servers], 20, ClientIdentity())),
            0,
        )
        made = [out.message for out in encoder.encode(batch)]
        alone = {message.body for message in made if not message.is_batch}
        assert alone == {b"delayed", b"consumed", b"later", b"retry", b"again", b"created"}
        assert len(made) == len(alone) + 3
        for change, words in (
            ({"body": b"x" * ((4 << 20) + 1)}, "a broker of RocketMQ accepts at most 4,194,304"),
            ({"queueId": 2}, "has queueId 2, but topic 'orders' has queues 0 to 1. .*mqadmin"),
        ):
            wrong = pa.RecordBatch.from_pylist([{**plain, "body": b"", **change}], schema=kinds)
            with pytest.raises(RowError, match=words):
                write(options, schema, iter([wrong]))


def test_large_batches_are_cut_so_that_a_broker_takes_them(servers: str, tmp_path: Path) -> None:
    schema = fields("body binary")
    sizes = [4 << 20, *[1] * 30_000, *[700_000] * 12, (4 << 20) - 100, 0]
    with registered(tmp_path, servers, "broker-d", mapped_file_size_commit_log=64 << 20) as (
        broker,
    ):
        options = planned(servers, schema, topic="orders", maxInFlightBytes="1m")
        batch = pa.record_batch({"body": [bytes([n % 256]) * size for n, size in enumerate(sizes)]})
        assert write(options, schema, iter([batch, batch.slice(0, 0)])).rows == len(sizes)
        found = broker.rows()
        assert sorted(len(row["body"]) for row in found) == sorted(sizes)
        for queue in range(2):
            ids = [row["uniqKey"] for row in found if row["queueId"] == queue]
            assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("given", "columns", "words"),
    [
        ({"deliveryGuarantee": "exactly-once"}, (), r"broker-e .*no commit.*same UNIQ_KEY"),
        ({"txnAppId": "a", "txnVersion": "1"}, (), "txnAppId and txnVersion are not possible"),
        ({"preserve": "true"}, ("bornHost string",), "bornHost cannot be kept"),
        ({"topic": "no/topic"}, (), "is not a topic name"),
        (
            {"brokerNames": "broker-x"},
            (),
            "Known brokers: broker-e",
        ),
        ({"endpoint": "rmq://127.0.0.1:1"}, (), "endpoint and namesrvAddr contradict"),
    ],
)
def test_what_brokers_of_rocketmq_cannot_do(
    tmp_path: Path, servers: str, given: dict[str, str], columns: tuple[str, ...], words: str
) -> None:
    schema = fields("body string", *columns)
    with registered(tmp_path, servers, "broker-e"), pytest.raises(RmqStoreError, match=words):
        planned(servers, schema, streaming=False, **{"topic": "orders", **given})


def test_store_processes_take_exactly_once_commits(tmp_path: Path) -> None:
    schema = fields("body string")
    with name_server(tmp_path) as servers, ExitStack() as stack:
        stores = []
        for name in ("broker-a", "broker-b"):
            settings = {
                "broker_name": name,
                "clients": "all",
                "namesrv_addr": servers,
            }
            here = stack.enter_context(served(tmp_path / name, **settings))
            here.store.create_topic("orders", write_queue_nums=2)
            stack.enter_context(serving_brokers_clients(here))
            stores.append(here)
        eventually(lambda: is_known(servers, 2))
        with pytest.raises(RmqStoreError, match=r"option\('brokerNames', 'broker-a,broker-b'\)"):
            planned(servers, schema, topic="orders")
        once = planned(servers, schema, streaming=False, topic="orders")
        assert once.target.connection.endpoints == tuple(here.endpoint for here in stores)
        assert not planned(
            servers, schema, topic="orders", deliveryGuarantee="at-least-once"
        ).delivery.exactly_once
        with pytest.raises(RmqStoreError, match=r"no master of broker-x now.*only broker-b"):
            planned(servers, schema, topic="orders", brokerNames="broker-x,broker-b")
        options = planned(servers, schema, brokerNames="broker-b,broker-a", topic="orders")
        assert options.target.connection == once.target.connection
        for _ in range(2):  # the second time as a query that is restarted
            done = write(options, schema, iter([bodies(*range(1000))]))
            writer = RmqStoreStreamWriter(options, find_columns(schema, options.messages))
            writer.commit([done], 0)
        found = [row for here in stores for row in rows_in(here.store.path)]
        numbers = [int(row["body"]) for row in found if row["topic"] == "orders"]
        assert sorted(numbers) == list(range(1000))
