"""Through a JVM: batch and stream by the route of a name server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812 - Spark's habit

from rmqstore_spark.client import StoreClient
from tests.broker.broker import route
from tests.datasource.conftest import rows_of
from tests.namesrv.serving import NamesrvProcess
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import StoreProcess
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path_factory.mktemp("namesrv")) as process:
        yield process


@pytest.mark.parametrize("kind", ["endpoint", "pulls"])
def test_a_batch_and_a_stream(
    spark: SparkSession,
    names: NamesrvProcess,
    tmp_path: Path,
    queries: Callable[..., Any],
    kind: str,
) -> None:
    topic = f"orders-{kind}"
    arguments = [
        "--clients=all",
        f"--set=namesrvAddr={names.address}",
        f"--set=brokerName={kind}",
    ]
    if kind == "pulls":  # No other machine reaches the socket, so it is not announced.
        (tmp_path / "socket").mkdir(mode=0o700)
        arguments += ["--clients=rocketmq", f"--set=listenSocket={tmp_path}/socket/s"]
    with StoreProcess(tmp_path / "store", tmp_path, *arguments) as process:
        with StoreClient(process.endpoint) as client:
            client.create_topic(topic, write_queue_nums=3)
            put(client, topic, 1000)
        told = eventually(lambda: route(names.address, topic))
        assert bool(told["filterServerTable"]) == (kind == "endpoint")

        def reader(frame: Any) -> Any:
            return frame.format("rmqstore").options(namesrvAddr=names.address, subscribe=topic)

        def stored(**options: str) -> DataFrame:
            frame = spark.read.format("rmqstore").options(brokerNames=kind, **options)
            return frame.option("subscribe", topic).load(str(tmp_path / "store"))

        found = reader(spark.read).option("tags", "TagA || TagC").load()
        equal(found, stored(tags="TagA || TagC"))

        got: list[list[dict[str, Any]]] = []
        stream = reader(spark.readStream).option("startingOffsets", "earliest")
        query = queries(
            stream.option("maxOffsetsPerTrigger", 600)
            .option("commitGroup", "lake")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda rows, _: got.append(rows_of(rows)))
        )
        query.processAllAvailable()
        with StoreClient(process.endpoint) as client:
            put(client, topic, 300, seed=2)
        assert eventually(lambda: sum(map(len, got)) == 1300, 120)
        query.stop()
        assert len(got) >= 3
        places = [(row["queueId"], row["queueOffset"]) for rows in got for row in rows]
        assert len(set(places)) == 1300
        equal(reader(spark.read).load(), stored())
        copies_are_equal(spark, names.address, topic, kind, str(tmp_path), queries)


def copies_are_equal(
    spark: SparkSession,
    servers: str,
    topic: str,
    kind: str,
    folder: str,
    queries: Callable[..., Any],
) -> None:
    """Copy a topic through the sink, as a batch and as a stream, to topics that do not exist."""
    read = {"namesrvAddr": servers, "subscribe": topic, "startingOffsets": "earliest"}
    once = {"brokerNames": kind} if kind == "endpoint" else {}
    written = {"namesrvAddr": servers, "preserve": "true"}
    columns = ["body", "keys", "tags", "flag", "uniqKey", "bornTimestamp"]
    rows = spark.read.format("rmqstore").options(**read).load().select(columns)
    batch = rows.write.format("rmqstore").options(**written, topic=f"{topic}-batch")
    batch.mode("append").save()
    stream = spark.readStream.format("rmqstore").options(**read).load().select(columns)
    copy = stream.writeStream.format("rmqstore").options(**written, **once, topic=f"{topic}-stream")
    copy = copy.option("checkpointLocation", f"{folder}/copy").trigger(availableNow=True)
    assert queries(copy).awaitTermination(120)
    for name in ("batch", "stream"):

        def copied(topic: str = f"{topic}-{name}") -> DataFrame:
            found = spark.read.format("rmqstore").options(namesrvAddr=servers, subscribe=topic)
            return found.load().select(columns)

        eventually(lambda: route(servers, f"{topic}-{name}"))  # noqa: B023 - called at once
        assert_df_equality(copied(), rows, ignore_row_order=True)


def put(client: StoreClient, topic: str, count: int, seed: int = 1) -> None:
    with client.put_stream() as stream:
        for block in encoded_traffic(Traffic(count, topics={topic: 3}, seed=seed)):
            stream.put(block)
        stream.finish()
    client.flush()


def equal(found: DataFrame, expected: DataFrame) -> None:
    """Require the same rows, and some. A map can be neither sorted nor compared."""

    def plain(frame: DataFrame) -> DataFrame:
        entries = F.array_sort(F.map_entries("properties"))
        return frame.withColumn("properties", entries.cast("string"))

    assert not expected.isEmpty()
    assert_df_equality(plain(found), plain(expected), ignore_row_order=True)
