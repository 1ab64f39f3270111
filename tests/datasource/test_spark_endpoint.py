"""Through a JVM: batch and stream, with `endpoint` in place of a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.datasource.spark_api import HAS_READ_LIMITS
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import group_offsets
from tests.datasource.conftest import rows_of
from tests.support.accounts import SECRET, account_file, guarded
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import Served, eventually, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def acl_file(tmp_path: Path) -> Path:
    return account_file(tmp_path / "mine")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(
        tmp_path / "store", broker_name="ours", **guarded(tmp_path / "accounts.yml")
    ) as found:
        found.store.create_topic("orders", write_queue_nums=3)
        put(found, 1000)
        yield found


def put(here: Served, count: int, seed: int = 1) -> None:
    for block in encoded_traffic(Traffic(count, topics={"orders": 3}, seed=seed)):
        assert here.store.put(block).ok
    here.store.flush()


def reader(kind: Any, here: Served, acl_file: Path) -> Any:
    frame = kind.format("rmqstore").option("endpoint", here.endpoint)
    return frame.option("aclFile", str(acl_file)).option("requestTimeout", "30s")


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def put_places(count: int) -> list[tuple[int, int]]:
    return sorted((number % 3, number // 3) for number in range(count))


@pytest.mark.threat("Who may connect")
@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_a_batch(spark: SparkSession, here: Served, acl_file: Path, plan_by: str) -> None:
    frame = reader(spark.read, here, acl_file).option("planBy", plan_by)
    frame = frame.option("maxBytesPerPartition", "64k").load()
    rows = rows_of(frame)
    assert places(rows) == put_places(1000)
    assert {row["brokerName"] for row in rows} == {"ours"}
    plan = frame._jdf.queryExecution().toString()
    assert SECRET not in plan


def test_a_stream_that_is_restarted(
    spark: SparkSession,
    here: Served,
    acl_file: Path,
    tmp_path: Path,
    queries: Callable[..., Any],
) -> None:
    got: dict[int, list[dict[str, Any]]] = {}

    def run() -> None:
        frame = reader(spark.readStream, here, acl_file).option("startingOffsets", "earliest")
        writer = frame.option("maxOffsetsPerTrigger", 400).load().writeStream
        query = queries(
            writer.foreachBatch(lambda part, number: got.update({number: rows_of(part)}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        assert query.awaitTermination(120)

    run()
    assert places([row for rows in got.values() for row in rows]) == put_places(1000)
    put(here, 500, seed=2)
    run()
    assert len([row for rows in got.values() for row in rows]) == 1500
    assert len(got) >= 4


def test_a_stream_sees_what_is_put_while_it_runs(
    spark: SparkSession, here: Served, acl_file: Path, queries: Callable[..., Any]
) -> None:
    got: list[dict[str, Any]] = []
    frame = reader(spark.readStream, here, acl_file).option("startingOffsets", "latest").load()
    query = queries(frame.writeStream.foreachBatch(lambda part, _: got.extend(rows_of(part))))
    query.processAllAvailable()
    put(here, 90, seed=3)
    eventually(lambda: len(got) == 90, 60)


@pytest.mark.spark_versions
def test_progress_is_recorded_as_that_of_a_consumer_group(
    spark: SparkSession,
    here: Served,
    acl_file: Path,
    tmp_path: Path,
    queries: Callable[..., Any],
) -> None:
    frame = reader(spark.readStream, here, acl_file).option("commitGroup", "lake")
    frame = frame.option("startingOffsets", "group:lake").option("maxOffsetsPerTrigger", 400)
    got: list[dict[str, Any]] = []
    lags: list[int] = []

    def batch(part: DataFrame, _: int) -> None:
        got.extend(rows_of(part))
        lags.append(lag(here))

    def start(checkpoint: str) -> Any:
        written = frame.load().writeStream.foreachBatch(batch)
        return written.option("checkpointLocation", str(tmp_path / checkpoint))

    for _ in range(1 if HAS_READ_LIMITS else 3):  # an older Spark reads one micro-batch a run
        assert queries(start("checkpoint").trigger(availableNow=True)).awaitTermination(120)
    assert lags == [1000, 600, 200]
    # A batch counts when it is finished: the last one too, if Spark asks what comes after it.
    unrecorded = 0 if HAS_READ_LIMITS else 200
    assert lag(here) == unrecorded
    put(here, 300, seed=2)
    assert lag(here) == 300 + unrecorded
    # Another query, without the checkpoint, continues where the group is.
    got.clear()
    queries(start("other"))
    eventually(lambda: lag(here) == 0, 120)
    assert len(got) == 300 + unrecorded


def lag(here: Served) -> int:
    """Return how many messages the group "lake" has not read."""
    with Store.open(here.store.path) as store:
        total = sum(end - begin for begin, end in here.store.stats()["queues"]["orders"].values())
        return total - sum(entry.offset for entry in group_offsets(store))


def test_progress_needs_a_store_process(spark: SparkSession, here: Served) -> None:
    frame = spark.readStream.format("rmqstore").option("commitGroup", "lake")
    with pytest.raises(Exception, match="commitGroup needs option endpoint"):
        frame.load(here.store.path).writeStream.format("noop").start().processAllAvailable()


@pytest.mark.threat("Who may connect")
def test_a_wrong_account(spark: SparkSession, here: Served, tmp_path: Path) -> None:
    wrong = account_file(tmp_path / "wrong", secret="f" * 32)
    with pytest.raises(Exception, match="aclFile") as failure:
        reader(spark.read, here, wrong).load().count()
    assert SECRET not in str(failure.value)
    assert "f" * 32 not in str(failure.value)


def test_a_path_and_an_endpoint(spark: SparkSession) -> None:
    frame = spark.read.format("rmqstore").option("endpoint", "rmq://127.0.0.1:1")
    with pytest.raises(Exception, match="path and endpoint contradict"):
        frame.load("/data/store").count()


def test_nobody_listens(spark: SparkSession) -> None:
    frame = spark.read.format("rmqstore").option("endpoint", "rmq://127.0.0.1:1")
    with pytest.raises(Exception, match="rmqstore serve"):
        frame.option("retries", "0").load().count()
