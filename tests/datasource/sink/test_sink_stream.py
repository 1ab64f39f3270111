"""Streams into a store process through a JVM: exactly once, whatever fails."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users have it

from rmqstore_spark.engine.failpoints import NAMES
from tests.datasource.sink.serving import Served
from tests.datasource.stream.test_spark_stream import run_to_the_end, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Serve = Callable[..., Served]
Start = Callable[..., Any]
TOPIC = "orders"
FILES, ROWS = 5, 400
_PATIENCE = 120


@pytest.fixture
def arriving(tmp_path: Path) -> Path:
    """Files of rows, of which a micro-batch takes one."""
    folder = tmp_path / "arriving"
    folder.mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, number * ROWS + ROWS)
        table = pa.table({"body": [f"row-{n}" for n in rows], "keys": [f"key-{n}" for n in rows]})
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=ROWS // 4)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
    return folder


def bodies(count: int = FILES * ROWS) -> Counter[bytes]:
    return Counter(f"row-{n}".encode() for n in range(count))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("body string, keys string")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))


def writer(frame: DataFrame, store: Served | str, checkpoint: Path, **options: Any) -> Any:
    endpoint = store if isinstance(store, str) else store.endpoint
    made = frame.writeStream.format("rmqstore").option("checkpointLocation", str(checkpoint))
    made = made.options(endpoint=endpoint, topic=TOPIC, requestTimeout="20s")
    return made.options(**options).trigger(availableNow=True)


def run(queries: Start, made: Any) -> None:
    """Run a query to its end."""
    assert queries(made).awaitTermination(_PATIENCE)


# ---- nothing fails ------------------------------------------------------------------------------


@pytest.mark.spark_versions
def test_each_row_of_each_batch_arrives_once(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    run(queries, writer(source(spark, arriving), served, tmp_path / "checkpoint"))
    served.rows(TOPIC, least=FILES * ROWS)
    read = spark.read.format("rmqstore").load(str(served.path)).select("body", "keys")
    wanted = spark.read.parquet(str(arriving)).select(
        F.col("body").cast("binary").alias("body"), F.array("keys").alias("keys")
    )
    assert_df_equality(read.orderBy("body"), wanted.orderBy("body"), ignore_nullable=True)
    assert served.commits() == FILES
    assert served.stages() == 0
    # A restart with nothing new does nothing.
    run(queries, writer(source(spark, arriving), served, tmp_path / "checkpoint"))
    assert served.commits() == FILES


def test_at_least_once(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    frame = source(spark, arriving)
    run(queries, writer(frame, served, tmp_path / "c", deliveryGuarantee="at-least-once"))
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == 0


@pytest.mark.spark_versions
def test_a_stream_from_one_store_to_another(
    spark: SparkSession, serve: Serve, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    first, second = serve("a"), serve("b")
    run(queries, writer(source(spark, arriving), first, tmp_path / "one"))
    first.rows(TOPIC, least=FILES * ROWS)
    reader = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    copied = reader.option("maxOffsetsPerTrigger", 700).load(str(first.path))
    copy = writer(copied, second, tmp_path / "two", preserve="true")
    run_to_the_end(lambda: queries(copy))
    assert second.bodies(TOPIC, least=FILES * ROWS) == bodies()
    ids = [{row["uniqKey"] for row in s.rows(TOPIC, ("uniqKey",))} for s in (first, second)]
    assert ids[0] == ids[1]


# ---- Spark repeats itself -----------------------------------------------------------------------


@pytest.mark.spark_versions
@pytest.mark.parametrize("lost", [1, 2])
def test_batches_whose_commit_spark_does_not_remember_are_not_stored_again(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start, lost: int
) -> None:
    """The driver died between the sink's commit and its note of it."""
    checkpoint = tmp_path / "checkpoint"
    run(queries, writer(source(spark, arriving), served, checkpoint))
    forget(checkpoint, lost)
    run(queries, writer(source(spark, arriving), served, checkpoint))
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES


def test_a_checkpoint_set_back_so_far_that_spark_cuts_other_batches_is_an_error(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    """Batch 3 had one file, and has two now."""
    checkpoint = tmp_path / "checkpoint"
    run(queries, writer(source(spark, arriving), served, checkpoint))
    forget(checkpoint, 3)
    with pytest.raises(
        StreamingQueryException, match=r"batch 3 of query .* with different content"
    ):
        run(queries, writer(source(spark, arriving), served, checkpoint))
    assert served.bodies(TOPIC) == bodies()
    assert served.commits() == FILES


def test_a_copied_checkpoint_that_writes_to_another_topic_is_an_error(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    checkpoint, copied = tmp_path / "checkpoint", tmp_path / "copied"
    run(queries, writer(source(spark, arriving), served, checkpoint))
    shutil.copytree(checkpoint, copied)
    forget(copied, 2)
    with pytest.raises(StreamingQueryException, match=r"different content.*audit: 400") as caught:
        run(queries, writer(source(spark, arriving), served, copied, topic="audit"))
    assert "a copy of its checkpoint" in str(caught.value)
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.bodies("audit") == Counter()


def test_one_txn_app_id_for_two_targets_in_one_foreach_batch_is_an_error(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    """Delta's pattern would leave the second topic empty."""

    def both(frame: DataFrame, batch_id: int) -> None:
        for topic in (TOPIC, "audit"):
            made = frame.write.format("rmqstore").mode("append").options(topic=topic)
            made.options(endpoint=served.endpoint, txnAppId="app", txnVersion=batch_id).save()

    made = source(spark, arriving).writeStream.foreachBatch(both).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"different content.*audit: 400") as caught:
        run(queries, made.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert "two topics in one foreachBatch" in str(caught.value)


def forget(checkpoint: Path, commits: int) -> None:
    """Let Spark forget that the last batches were committed, and all about those but the first."""
    for folder, first in (("commits", FILES - commits), ("offsets", FILES - commits + 1)):
        for number in range(first, FILES):
            for name in (f"{number}", f".{number}.crc"):
                (checkpoint / folder / name).unlink(missing_ok=True)


def test_two_stores_and_a_replay(
    spark: SparkSession, serve: Serve, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    stores = [serve("a", brokerName="broker-a"), serve("b", brokerName="broker-b")]
    endpoints = ",".join(store.endpoint for store in stores)
    checkpoint = tmp_path / "checkpoint"
    for lost in (0, 2):
        forget(checkpoint, lost)
        run(queries, writer(source(spark, arriving), endpoints, checkpoint))
        found = [store.bodies(TOPIC) for store in stores]
        assert found[0] + found[1] == bodies()
        assert min(sum(part.values()) for part in found) > FILES * ROWS // 4


def test_a_query_that_is_stopped_and_started_again(
    spark: SparkSession, served: Served, tmp_path: Path, queries: Start
) -> None:
    """Stopped in the midst of whatever it does; rows are numbered, so a gap would show."""
    frame = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500)
        .option("numPartitions", 3).load()
        .select(F.concat(F.lit("row-"), F.col("value")).alias("body"))
    )  # fmt: skip
    checkpoint = tmp_path / "checkpoint"
    for round_number in range(1, 4):
        made = writer(frame, served, checkpoint).trigger(processingTime="0 seconds")
        query = queries(made)
        wait_until(partial(_has_committed, served, round_number * 2), query)
        query.stop()
    count = sum(served.bodies(TOPIC).values())
    assert served.bodies(TOPIC) == bodies(count)
    assert count == served.commits() * 500


def _has_committed(store: Served, count: int) -> bool:
    return store.commits() >= count


def test_two_writes_of_foreach_batch_that_is_run_again(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    failures = [1, 3]

    def both(frame: DataFrame, number: int) -> None:
        for name in ("one", "two"):
            (
                frame.write.format("rmqstore").mode("append")
                .options(endpoint=served.endpoint, topic=name, txnAppId=f"copy-{name}")
                .option("txnVersion", number).save()
            )  # fmt: skip
            if name == "one" and number in failures:
                failures.remove(number)
                raise ValueError("between two writes")

    def start() -> None:
        made = source(spark, arriving).writeStream.foreachBatch(both)
        made = made.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run(queries, made.trigger(availableNow=True))

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="between two writes"):
            start()
    start()
    for name in ("one", "two"):
        assert served.bodies(name, least=FILES * ROWS) == bodies()


# ---- the store process dies ---------------------------------------------------------------------


@contextmanager
def supervised(store: Served) -> Iterator[list[int]]:
    """Start the process again whenever it is gone, as systemd does; returns how often that was."""
    done, restarts = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.05):
            if store.process.pid is None:
                store.restart()
                restarts[0] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield restarts
    finally:
        done.set()
        thread.join()


def run_until_it_ends(queries: Start, make: Callable[[], Any], attempts: int = 4) -> int:
    """Start a query again from its checkpoint until it ends well; returns how often it failed."""
    for failed in range(attempts):
        try:
            run(queries, make())
        except StreamingQueryException as error:
            if not any(kind in str(error) for kind in ("RefusedError", "ServiceError")):
                raise
        else:
            return failed
    raise AssertionError("the query does not come to its end")


COMMIT_PLACES = [name for name in NAMES if name.partition(".")[0] in ("stage", "commit")]


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=pytest.mark.spark_versions)
        if place in ("commit.before_write", "commit.after_publish") else place
        for place in COMMIT_PLACES
    ],
)  # fmt: skip
def test_a_store_that_is_killed_during_a_stream(
    spark: SparkSession,
    serve: Serve,
    arriving: Path,
    tmp_path: Path,
    queries: Start,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise 2. Where only the answer to a commit was lost, the query does not even notice."""
    monkeypatch.setenv("RMQSTORE_FAILPOINT", f"{place}:3")
    store = serve()
    monkeypatch.delenv("RMQSTORE_FAILPOINT")
    frame = source(spark, arriving)
    with supervised(store) as restarts:
        failed = run_until_it_ends(
            queries, lambda: writer(frame, store, tmp_path / "checkpoint", retries=10)
        )
    assert restarts == [1], "the place was not reached"
    assert store.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert store.commits() == FILES
    assert failed == (0 if place in ("commit.after_publish", "commit.after_sync",
                                     "commit.after_dispatch") else 1)  # fmt: skip


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("place", [name for name in NAMES if name.startswith("put.")])
def test_at_least_once_loses_nothing_when_the_store_is_killed(
    spark: SparkSession,
    serve: Serve,
    arriving: Path,
    tmp_path: Path,
    queries: Start,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RMQSTORE_FAILPOINT", f"{place}:3")
    store = serve()
    monkeypatch.delenv("RMQSTORE_FAILPOINT")
    options = {"deliveryGuarantee": "at-least-once", "retries": 10}
    frame = source(spark, arriving)
    with supervised(store) as restarts:
        run_until_it_ends(queries, lambda: writer(frame, store, tmp_path / "checkpoint", **options))
    assert restarts == [1], "the place was not reached"
    found = store.bodies(TOPIC)
    assert found.keys() == bodies().keys()
    assert sum(found.values()) <= (FILES + 1) * ROWS


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("complete", "Output mode complete is not supported"),
        ("update", "rmqstore does not support Update mode"),
    ],
)
def test_other_output_modes_are_refused(
    spark: SparkSession, arriving: Path, tmp_path: Path, queries: Start, mode: str, words: str
) -> None:
    counted = source(spark, arriving).groupBy("body").agg(F.max("keys").alias("keys"))
    made = writer(counted, "rmq://127.0.0.1:9", tmp_path / "checkpoint").outputMode(mode)
    with pytest.raises(PySparkException) as caught:
        run(queries, made)
    assert words in str(caught.value)


def test_what_is_wrong_is_said_before_anything_runs(
    spark: SparkSession, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    frame = source(spark, arriving).withColumn("price", F.lit(1))
    with pytest.raises(PySparkException, match="Column 'price' cannot be written"):
        run(queries, writer(frame, "rmq://127.0.0.1:9", tmp_path / "checkpoint"))
    made = writer(source(spark, arriving), "rmq://127.0.0.1:9", tmp_path / "c2")
    with pytest.raises(PySparkException, match="Option txnAppId is for batch writes"):
        run(queries, made.options(txnAppId="a", txnVersion=1))


def test_progress_counts_the_rows(
    spark: SparkSession, served: Served, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    query = queries(writer(source(spark, arriving), served, tmp_path / "checkpoint"))
    assert query.awaitTermination(_PATIENCE)
    progress = [json.loads(p.json)["numInputRows"] for p in query.recentProgress]
    assert sum(progress) == FILES * ROWS
