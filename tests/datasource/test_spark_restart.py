"""Through a JVM: running queries whose store process is restarted under them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datasource.conftest import rows_of
from tests.datasource.sink.serving import Served
from tests.datasource.stream.test_spark_stream import wait_until
from tests.support.processes.serving import block_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Start = Callable[..., Any]

OUTAGE = 6.0
"""Seconds that the process is gone: twice as long as five retries last."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Served]:
    store = Served(tmp_path / "store")
    yield store
    store.process.stop()


@contextmanager
def gone(store: Served, query: StreamingQuery) -> Iterator[None]:
    """Stop the process; afterwards start it again on its port, when it was gone for `OUTAGE`."""
    endpoint = store.endpoint
    store.process.stop()
    back = time.monotonic() + OUTAGE
    yield
    wait_until(lambda: time.monotonic() >= back, query)
    store.restart()
    assert store.endpoint == endpoint


def put(store: Served, numbers: range) -> None:
    with store.client() as client, client.put_stream() as stream:
        stream.send(block_of([b"row-%d" % number for number in numbers]))


def bodies(count: int) -> Counter[bytes]:
    return Counter(b"row-%d" % number for number in range(count))


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_a_query_that_reads_goes_on(
    spark: SparkSession, store: Served, queries: Start, plan_by: str
) -> None:
    put(store, range(100))
    got: dict[int, list[bytes]] = {}

    def take(frame: DataFrame, number: int) -> None:
        got[number] = [row["body"] for row in rows_of(frame)]

    def found() -> Counter[bytes]:
        return Counter(body for rows in got.values() for body in rows)

    reader = spark.readStream.format("rmqstore").options(endpoint=store.endpoint, planBy=plan_by)
    frame = reader.option("startingOffsets", "earliest").load()
    query = queries(frame.writeStream.foreachBatch(take))
    wait_until(lambda: found() == bodies(100), query)
    with gone(store, query):
        pass
    put(store, range(100, 250))
    wait_until(lambda: sum(found().values()) >= 250, query)
    assert found() == bodies(250)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_query_that_writes_goes_on(
    spark: SparkSession, store: Served, tmp_path: Path, queries: Start, guarantee: str
) -> None:
    arriving = tmp_path / "arriving"
    arriving.mkdir()

    def arrive(numbers: range) -> None:
        rows = pa.table({"body": [f"row-{number}" for number in numbers]})
        pq.write_table(rows, tmp_path / "making.parquet")
        (tmp_path / "making.parquet").rename(arriving / f"{numbers.start}.parquet")

    arrive(range(100))
    frame = spark.readStream.schema("body string").parquet(str(arriving))
    made = frame.writeStream.format("rmqstore").option("topic", "orders")
    made = made.options(endpoint=store.endpoint, deliveryGuarantee=guarantee)
    checkpoint = tmp_path / "checkpoint"
    query = queries(made.option("checkpointLocation", str(checkpoint)))
    wait_until((checkpoint / "commits" / "0").exists, query)
    with gone(store, query):
        arrive(range(100, 250))
        # The batch begins while nobody listens.
        wait_until((checkpoint / "offsets" / "1").exists, query)
    wait_until((checkpoint / "commits" / "1").exists, query)
    assert store.bodies("orders", least=250) == bodies(250)
    assert query.isActive
