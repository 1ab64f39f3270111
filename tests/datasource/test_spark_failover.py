"""Spark reads from a store process and its follower, and each of them fails in turn."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from rmqstore_spark.client import StoreClient
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, block_of, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART = 600
PATIENCE = 240.0
COLUMNS = ("queueId", "queueOffset", "CAST(body AS STRING) AS body")


class Pair:
    """A store process and its follower, both of which can be killed and started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = {name: free_port() for name in ("first", "second", "ha")}
        self._settings = {
            "first": [f"--set=haListenPort={self._ports['ha']}"],
            "second": [
                "--set=brokerRole=SLAVE",
                f"--set=haMasterAddress=127.0.0.1:{self._ports['ha']}",
            ],
        }
        self.written = 0
        self.processes = {name: self._started(name) for name in ("first", "second")}

    def _started(self, name: str) -> StoreProcess:
        place = self._folder / name
        place.mkdir(exist_ok=True)
        port = str(self._ports[name])
        process = StoreProcess(place / "store", place, "--port", port, *self._settings[name])
        process.ready()
        return self._stack.enter_context(process)

    def restart(self, name: str) -> None:
        self.processes[name] = self._started(name)

    @property
    def endpoint(self) -> str:
        return "|".join(f"rmq://127.0.0.1:{self._ports[name]}" for name in ("first", "second"))

    def put(self, count: int = PART) -> None:
        numbers = range(self.written, self.written + count)
        bodies = [b"%d" % number for number in numbers]
        with (
            StoreClient(self.processes["first"].endpoint) as client,
            client.put_stream() as stream,
        ):
            stream.send(block_of(bodies, queue_ids=[number % 3 for number in numbers]))
            stream.drain()
        self.written += count

    def follower_has_all(self) -> None:
        with (
            StoreClient(self.processes["first"].endpoint) as first,
            StoreClient(self.processes["second"].endpoint) as second,
        ):
            end = first.stats()["commitLogMaxOffset"]
            eventually(lambda: second.stats()["commitLogMaxOffset"] == end, PATIENCE)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def reading(kind: Any, pair: Pair) -> Any:
    options = {"endpoint": pair.endpoint, "subscribe": "orders", "replicaTimeout": "2s"}
    return kind.format("rmqstore").options(**options).option("startingOffsets", "earliest")


def expected(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr(
        "int(id % 3) AS queueId", "id DIV 3 AS queueOffset", "CAST(id AS STRING) AS body"
    )


def assert_each_once(spark: SparkSession, found: DataFrame, count: int) -> None:
    assert_df_equality(found, expected(spark, count), ignore_row_order=True, ignore_nullable=True)


@pytest.mark.fault
@pytest.mark.spark_versions_more
def test_a_stream_reads_each_message_once_whichever_process_fails(
    spark: SparkSession, pair: Pair, tmp_path: Path, queries: Callable[..., Any]
) -> None:
    pair.put()
    pair.follower_has_all()
    copy, checkpoint = str(tmp_path / "copy"), str(tmp_path / "checkpoint")

    def start() -> Any:
        rows = reading(spark.readStream, pair).option("maxOffsetsPerTrigger", 200).load()
        writer = rows.selectExpr(*COLUMNS).writeStream.format("parquet")
        return queries(writer.option("path", copy).option("checkpointLocation", checkpoint))

    query = start()
    done = 0

    def has_read(count: int) -> Any:
        def look() -> bool:
            assert query.isActive, query.exception()
            return done + sum(p.numInputRows for p in query.recentProgress) >= count

        return eventually(look, PATIENCE)

    has_read(200)
    pair.processes["first"].signal(signal.SIGKILL)
    has_read(PART)  # from the follower
    pair.restart("first")
    pair.put()
    pair.processes["second"].signal(signal.SIGSTOP)
    has_read(2 * PART)  # from the first one, while the follower hangs
    pair.processes["second"].signal(signal.SIGCONT)
    pair.put()
    pair.follower_has_all()
    pair.processes["first"].signal(signal.SIGSTOP)
    has_read(3 * PART)
    query.stop()
    pair.processes["first"].signal(signal.SIGCONT)
    pair.put()
    done = 3 * PART
    query = start()
    has_read(4 * PART)
    query.stop()
    assert_each_once(spark, spark.read.parquet(copy), 4 * PART)


@pytest.mark.fault
@pytest.mark.spark_versions_more
def test_a_batch_whose_first_replica_hangs(spark: SparkSession, pair: Pair) -> None:
    pair.put()
    pair.follower_has_all()
    frame = reading(spark.read, pair).load().selectExpr(*COLUMNS)
    assert_each_once(spark, frame, PART)
    # Planned on the one that hangs now, and planned again.
    pair.processes["first"].signal(signal.SIGSTOP)
    assert_each_once(spark, frame, PART)
    assert_each_once(spark, reading(spark.read, pair).load().selectExpr(*COLUMNS), PART)
