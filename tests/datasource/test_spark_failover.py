"""Spark reads from a store process and its follower, and each of them fails in turn."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from tests.datasource.pair import PART, PATIENCE, Pair
from tests.support.processes.serving import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("queueId", "queueOffset", "CAST(body AS STRING) AS body")


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
