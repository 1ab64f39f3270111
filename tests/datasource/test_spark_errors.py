"""What a user of Spark reads where something is wrong: the sentence, without our frames."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from rmqstore_spark.base.workers import spark_version
from rmqstore_spark.datasource.sink.commit import START_AGAIN
from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.errors import OptionError
from tests.datasource.driving import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_versions

Start = Callable[..., Any]

UNKNOWN = "rmqstore_spark.errors.OptionError: Unknown option 'subscribd'. Did you mean subscribe?"
CONTRADICTION = (
    "rmqstore_spark.errors.OptionError: Options subscribe and assign contradict each other: "
    "set only one."
)
NO_TOPIC = "rmqstore_spark.errors.TopicNotFoundError: Topic 'nothing' does not exist in "
DAMAGE = "rmqstore_spark.errors.CorruptRecordError: "
NOBODY = (
    "rmqstore_spark.errors.ServiceError: Nothing listens on rmq://127.0.0.1:1. Start a store "
    "process there: rmqstore serve."
)
TWICE = {"subscribe": "orders", "assign": '{"orders":[0]}'}
UNREACHABLE = {"endpoint": "rmq://127.0.0.1:1", "topic": "orders", "retries": "0"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with 100 messages."""
    growing = GrowingStore(tmp_path / "b" / "store")
    growing.put(100)
    return growing.path


@pytest.fixture
def damaged(store: Path) -> Path:
    """The same, with its first record damaged."""
    log = store / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[4:8] = b"\xff" * 4  # its magic code
    log.write_bytes(data)
    return store


def check_sentence(error: Exception, sentence: str) -> None:
    """The sentence ends the first line, or is a line of its own; no frame stands anywhere."""
    text = str(error)
    assert "Traceback" not in text
    assert 'File "' not in text
    ours = [line for line in text.splitlines() if "rmqstore_spark.errors" in line]
    assert len(ours) == 1
    # Before Spark 4.2, "An exception was thrown from the Python worker." is a line of its own.
    assert ours[0] in text.splitlines()[: 2 if spark_version() >= (4, 2) else 3]
    before, found, after = ours[0].partition(sentence)
    assert found
    assert before == "" or before.endswith(": ")
    if sentence.endswith((".", "?")):
        assert after == ""


# ---- batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribd": "orders"}, UNKNOWN),
        (TWICE, CONTRADICTION),
        ({"subscribe": "nothing"}, NO_TOPIC),
    ],
)
def test_a_read_that_is_planned(
    spark: SparkSession, store: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("rmqstore").options(**options).load(str(store)).count()
    check_sentence(caught.value, sentence)


def test_a_task_that_reads(spark: SparkSession, damaged: Path) -> None:
    with pytest.raises(PythonException) as caught:
        spark.read.format("rmqstore").load(str(damaged)).toArrow()
    check_sentence(caught.value, DAMAGE)


def test_a_write_that_is_planned(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) AS body")
    with pytest.raises(AnalysisException) as caught:
        rows.write.format("rmqstore").option("subscribd", "x").mode("append").save()
    check_sentence(caught.value, UNKNOWN)


def test_a_write_to_nobody(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) AS body")
    with pytest.raises(AnalysisException) as caught:  # before any task runs
        rows.write.format("rmqstore").options(**UNREACHABLE).mode("append").save()
    check_sentence(caught.value, NOBODY)


# ---- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(TWICE, CONTRADICTION), ({"subscribe": "nothing"}, NO_TOPIC)],
)
def test_a_stream_that_is_planned(
    spark: SparkSession,
    store: Path,
    tmp_path: Path,
    queries: Start,
    options: dict[str, str],
    sentence: str,
) -> None:
    frame = spark.readStream.format("rmqstore").options(**options).load(str(store))
    check_sentence(failure_of(queries, frame.writeStream.format("noop"), tmp_path), sentence)


def test_a_task_of_a_stream(
    spark: SparkSession, damaged: Path, tmp_path: Path, queries: Start
) -> None:
    frame = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    writer = frame.load(str(damaged)).writeStream.format("noop")
    check_sentence(failure_of(queries, writer, tmp_path), DAMAGE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(UNREACHABLE, f"{NOBODY} {START_AGAIN}"), ({"subscribd": "x"}, UNKNOWN)],
)
def test_a_stream_that_writes(
    spark: SparkSession,
    store: Path,
    tmp_path: Path,
    queries: Start,
    options: dict[str, str],
    sentence: str,
) -> None:
    frame = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    writer = frame.load(str(store)).select("body").writeStream.format("rmqstore").options(**options)
    check_sentence(failure_of(queries, writer, tmp_path), sentence)


def failure_of(queries: Start, writer: Any, folder: Path) -> Exception:
    """Run a query that fails, and give its error."""
    checkpointed = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = queries(checkpointed.trigger(availableNow=True))
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    return caught.value


# ---- what stays as it is ------------------------------------------------------------------------


def test_an_error_in_the_users_own_function_keeps_its_traceback(
    spark: SparkSession, damaged: Path
) -> None:
    """Spark ends a worker that has raised an error of ours, and its environment with it."""
    from pyspark.sql.functions import udf

    divided = udf(lambda number: 1 // (number - number), "int")
    with pytest.raises(PythonException):
        spark.read.format("rmqstore").load(str(damaged)).toArrow()
    with pytest.raises(PythonException) as caught:
        spark.range(4, numPartitions=2).select(divided("id")).collect()
    assert "Traceback (most recent call last)" in str(caught.value)
    assert "in <lambda>" in str(caught.value)


def test_a_program_that_is_no_worker_is_left_alone() -> None:
    before = dict(os.environ)
    with pytest.raises(OptionError, match="subscribd") as caught:
        RmqStoreDataSource({"subscribd": "orders"})
    assert dict(os.environ) == before
    assert "check_options" in [entry.name for entry in caught.traceback]
