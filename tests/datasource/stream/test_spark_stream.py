"""Streams through a JVM: SPARK.md's traps, restarts, triggers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from rmqstore_spark.datasource.spark_api import HAS_READ_LIMITS, KEEPS_TABLE_OPTIONS
from tests.datasource.conftest import by_broker, rows_of
from tests.datasource.driving import GrowingStore, keys_of
from tests.support.stores.expected import backed_rows
from tests.support.stores.golden import GOLDEN_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Golden = Callable[[str], Path]
Start = Callable[..., Any]
Key = tuple[str, int, int]

_PATIENCE = 120.0


class Sink:
    """Keeps the rows of each micro-batch; a batch that is run again takes its first run's place."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.fail_once = False

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = rows_of(frame)
        if self.fail_once:
            self.fail_once = False
            raise ValueError("the sink fails")
        self.batches[number] = rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def wait_for(self, query: StreamingQuery, count: int) -> None:
        """Wait until so many rows have come."""
        wait_until(lambda: len(self.rows) >= count, query)
        assert len(self.rows) == count


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for something that a running query is to bring about."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stream_of(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    frame = spark.readStream.format("rmqstore")
    for name, value in options.items():
        frame = frame.option(name, value)
    return frame.load(str(path))


def writer(frame: DataFrame, checkpoint: Path, sink: Any, **trigger: Any) -> Any:
    made = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return made.trigger(**trigger) if trigger else made


def run(query: StreamingQuery) -> list[dict[str, Any]]:
    """Wait for a query's end; returns its progress."""
    assert query.awaitTermination(int(_PATIENCE))
    return [json.loads(progress.json) for progress in query.recentProgress]


def run_to_the_end(start: Callable[[], StreamingQuery]) -> list[dict[str, Any]]:
    """Run a query with trigger availableNow until it has read everything; returns its progress.

    Before Spark 4.2 a run reads one micro-batch.
    """
    progress = run(start())
    while not HAS_READ_LIMITS:
        more = run(start())
        if not any(done["numInputRows"] for done in more):
            break
        progress += more
    return progress


@pytest.fixture
def growing(tmp_path: Path) -> GrowingStore:
    """A store with 100 messages."""
    store = GrowingStore(tmp_path / "b" / "store")
    store.put(100)
    return store


# ---- golden stores ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "plan_by"),
    [
        pytest.param("local", "commitlog", marks=pytest.mark.spark_versions),
        ("zip", "queue"),
    ],
)
def test_every_golden_store_in_one_stream(
    spark: SparkSession,
    golden: Golden,
    tmp_path: Path,
    queries: Start,
    kind: str,
    plan_by: str,
    locate: Callable[[str, str], tuple[str, list[str]]],
) -> None:
    names = [name for name in GOLDEN_NAMES if name != "unclean-nocq"]
    places = {name: locate(kind, name) for name in names}
    folders = {name: logs for name, (_, logs) in places.items() if logs}
    sink = Sink()
    frame = stream_of(
        spark,
        json.dumps([url for url, _ in places.values()]),
        startingOffsets="earliest",
        includeSystemTopics=True,
        storePathCommitLog=json.dumps(folders),
        brokerNames=",".join(names),
        maxOffsetsPerTrigger=8000,
        planBy=plan_by,
    )
    checkpoint = tmp_path / "checkpoint"
    progress = run_to_the_end(lambda: queries(writer(frame, checkpoint, sink, availableNow=True)))
    assert by_broker(sink.rows) == {name: backed_rows(golden(name)) for name in names}
    counts = [done["numInputRows"] for done in progress]
    assert len(counts) > 1
    assert max(counts) <= 8000 + 300  # one of each queue at least


# ---- a query that runs on -----------------------------------------------------------------------


@pytest.mark.spark_versions
def test_a_running_stream_and_its_restart(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    sink = Sink()
    checkpoint = tmp_path / "checkpoint"

    def start() -> StreamingQuery:
        frame = stream_of(spark, growing.path)
        query: StreamingQuery = queries(writer(frame, checkpoint, sink, processingTime="0 seconds"))
        return query

    query = start()
    # The first batch fixes where a stream at latest starts, with no rows or some.
    wait_until((checkpoint / "commits" / "0").exists, query)
    growing.put(10)
    sink.wait_for(query, 10)
    growing.put(25, {"orders": 3})  # a new queue, and
    growing.put(5, {"bills": 1})  # a new topic
    sink.wait_for(query, 40)
    newest = {"queues": {"b": {"bills": "0:5", "orders": "0:64 1:63 2:8"}}}

    def has_told() -> bool:
        source = end_of(query)
        # An older Spark does not ask for the newest offsets, and shows the end of the batch.
        is_newest = not HAS_READ_LIMITS or source.get("latestOffset") == newest
        return is_newest and "bills" in str(source.get("endOffset"))

    wait_until(has_told, query)  # which batch reads what depends on when it begins
    assert list(end_of(query)["endOffset"]["queues"]["b"]) == ["bills", "orders"]
    query.stop()
    growing.put(30)
    again = start()
    sink.wait_for(again, 70)
    again.stop()
    assert sorted(keys_of(sink.rows)) == sorted(growing.rows[100:])


def end_of(query: StreamingQuery) -> dict[str, Any]:
    """What the newest progress that read anything says of the source."""
    done = [json.loads(progress.json) for progress in query.recentProgress]
    sources = [progress["sources"][0] for progress in done if progress["numInputRows"]]
    return sources[-1] if sources else {}


@pytest.mark.spark_versions
def test_a_first_batch_that_never_committed(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    sink = Sink()
    sink.fail_once = True
    checkpoint = tmp_path / "checkpoint"
    starting = {"startingTimestamp": 1_700_000_000_005}  # half of what there is
    frame = stream_of(spark, growing.path, **starting)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run(queries(writer(frame, checkpoint, sink, availableNow=True)))
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists()
    growing.put(40)
    # Latest by now: initialOffset is past the end of the batch that is run again.
    frame = stream_of(spark, growing.path, startingOffsets="latest")
    run_to_the_end(lambda: queries(writer(frame, checkpoint, sink, availableNow=True)))
    assert sorted(keys_of(sink.rows)) == sorted(growing.rows[50:])


@pytest.mark.spark_versions
def test_triggers(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 30}
    sink = Sink()
    frame = stream_of(spark, growing.path, **limited)
    run_to_the_end(lambda: queries(writer(frame, tmp_path / "c1", sink, availableNow=True)))
    assert [len(sink.batches[n]) for n in sorted(sink.batches)] == [30, 30, 30, 10]
    growing.put(7)
    run(queries(writer(frame, tmp_path / "c1", sink, availableNow=True)))
    assert sorted(keys_of(sink.rows)) == sorted(growing.rows)

    once = Sink()
    run(queries(writer(frame, tmp_path / "c2", once, once=True)))
    # Trigger.Once lifts the limit, which an older Spark does not tell its sources.
    assert [len(rows) for rows in once.batches.values()] == [107 if HAS_READ_LIMITS else 30]


@pytest.mark.spark_versions
def test_a_batch_that_is_read_more_than_once(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    counts = []

    def two_actions(frame: DataFrame, number: int) -> None:
        counts.append((frame.count(), frame.where("queueId = 1").count()))

    frame = stream_of(spark, growing.path, startingOffsets="earliest").select("queueId")
    itself = frame.where("queueId = 0").unionAll(frame)
    run(queries(writer(itself, tmp_path / "checkpoint", two_actions, availableNow=True)))
    assert counts == [(150, 50)]


@pytest.mark.spark_versions
def test_several_sources_in_one_query(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    other = GrowingStore(tmp_path / "c" / "store", {"bills": 1})
    other.put(40)
    sink = Sink()

    def rows_by_source() -> list[list[int]]:
        limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 60}
        frame = stream_of(spark, growing.path, **limited).unionAll(
            stream_of(spark, other.path, startingOffsets="earliest")
        )
        progress = run_to_the_end(
            lambda: queries(writer(frame, tmp_path / "checkpoint", sink, availableNow=True))
        )
        found = [[each["numInputRows"] for each in done["sources"]] for done in progress]
        return [counts for counts in found if any(counts)]

    assert rows_by_source() == [[60, 40], [40, 0]]
    other.put(5)  # the first source has nothing new
    assert rows_by_source() == [[0, 5]]
    assert sorted(keys_of(sink.rows)) == sorted(growing.rows + other.rows)


@pytest.mark.spark_versions
def test_a_table_is_a_stream_too(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    create = (
        f"CREATE TABLE streamed USING rmqstore OPTIONS (path '{growing.path}', "
        "startingOffsets 'earliest', maxBytesPerTrigger '1m')"
    )
    if not KEEPS_TABLE_OPTIONS:
        with pytest.raises(AnalysisException, match=r"A table of this format needs Spark 4\.3"):
            spark.sql(create)
        return
    spark.sql(create)
    try:
        sink = Sink()
        frame = spark.readStream.option("subscribe", "orders").table("streamed")
        run(queries(writer(frame, tmp_path / "checkpoint", sink, availableNow=True)))
        assert sorted(keys_of(sink.rows)) == sorted(growing.rows)
    finally:
        spark.sql("DROP TABLE streamed")


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "options", "words"),
    [
        ("tiny", {"endingOffsets": "latest"}, "Option endingOffsets is for batch queries"),
        pytest.param(
            "tiny",
            {"subscribe": "Nope"},
            "Topic 'Nope' does not exist",
            marks=pytest.mark.spark_versions,
        ),
        ("unclean-nocq", {}, "A stream needs the queues of"),
    ],
)
def test_errors_are_readable(
    spark: SparkSession,
    store: str,
    options: dict[str, str],
    words: str,
    golden: Golden,
    tmp_path: Path,
    queries: Start,
) -> None:
    frame = stream_of(spark, golden(store) / "store", **options)
    with pytest.raises(StreamingQueryException) as caught:
        run(queries(writer(frame, tmp_path / "checkpoint", Sink(), availableNow=True)))
    text = str(caught.value)
    assert words in text
    # An error of streamReader() itself would end in one of Spark's own, or be passed over.
    assert "UnboundLocalError" not in text
    assert "NOT_IMPLEMENTED" not in text


@pytest.mark.spark_versions
def test_a_lost_queue_stops_a_query_and_can_be_passed_over(
    spark: SparkSession, growing: GrowingStore, tmp_path: Path, queries: Start
) -> None:
    sink = Sink()
    checkpoint = tmp_path / "checkpoint"
    frame = stream_of(spark, growing.path, startingOffsets="earliest")
    run(queries(writer(frame, checkpoint, sink, availableNow=True)))
    queue = growing.path / "consumequeue" / "orders" / "0" / f"{0:020}"
    data = queue.read_bytes()
    queue.write_bytes(data[: 20 * 20] + bytes(len(data) - 20 * 20))
    with pytest.raises(StreamingQueryException, match="read orders/0 of b up to 50"):
        run(queries(writer(frame, checkpoint, sink, availableNow=True)))
    frame = stream_of(spark, growing.path, failOnDataLoss=False)
    sink.batches.clear()
    run(queries(writer(frame, checkpoint, sink, availableNow=True)))
    assert sorted(keys_of(sink.rows)) == [("orders", 0, n) for n in range(20)]
