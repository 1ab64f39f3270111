"""Batch queries through a JVM: SPARK.md's traps, and every golden store."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from rmqstore_spark.base.workers import spark_version
from rmqstore_spark.datasource.spark_api import KEEPS_TABLE_OPTIONS
from tests.datasource.conftest import by_broker, rows_of
from tests.datasource.driving import GrowingStore
from tests.support.processes.jvm import quick_java
from tests.support.stores.expected import backed_rows, expected_rows, log_rows, queue_key
from tests.support.stores.golden import GOLDEN_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]
Locate = Callable[[str, str], tuple[str, list[str]]]
ROOT = Path(__file__).resolve().parents[2]
PLANS_ONCE = spark_version() >= (4, 1)


def reader(spark: SparkSession, **options: Any) -> Any:
    frame = spark.read.format("rmqstore")
    for name, value in options.items():
        frame = frame.option(name, value)
    return frame


# ---- golden stores ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan_by", "kind"),
    [
        ("queue", "zip"),
        pytest.param("commitlog", "local", marks=pytest.mark.spark_versions),
    ],
)
def test_every_golden_store_in_one_query(
    spark: SparkSession, plan_by: str, kind: str, golden: Golden, locate: Locate
) -> None:
    names = [n for n in GOLDEN_NAMES if not (n == "unclean-nocq" and plan_by == "queue")]
    places = {name: locate(kind, name) for name in names}
    folders = {name: logs for name, (_, logs) in places.items() if logs}
    frame = reader(
        spark,
        planBy=plan_by,
        includeSystemTopics=True,
        storePathCommitLog=json.dumps(folders),
        brokerNames=",".join(names),
    ).load([url for url, _ in places.values()])
    got = by_broker(rows_of(frame))
    assert set(got) == set(names)
    for name in names:
        expected = backed_rows(golden(name)) or sorted(log_rows(golden(name)), key=queue_key)
        assert got[name] == expected, name


# ---- columns ------------------------------------------------------------------------------------


@pytest.mark.spark_versions
def test_a_users_schema_is_the_projection(spark: SparkSession, golden: Golden) -> None:
    path = str(golden("basic") / "store")
    schema = "BODY string NOT NULL, keys array<string>, QueueId int, storeTimestamp timestamp"
    frame = reader(spark).schema(schema).load(path)
    assert frame.columns == ["BODY", "keys", "QueueId", "storeTimestamp"]
    wanted = [r for r in expected_rows(golden("basic")) if not r["topic"].startswith("%")]
    assert sorted((r["BODY"], r["QueueId"]) for r in rows_of(frame)) == sorted(
        (r["body"].decode("utf-8", "replace"), r["queueId"]) for r in wanted
    )
    assert frame.where("QueueId = 3").count() == sum(r["queueId"] == 3 for r in wanted)


def test_a_column_that_is_none(spark: SparkSession, golden: Golden) -> None:
    frame = reader(spark).schema("topic string, partition int").load(str(golden("tiny") / "store"))
    with pytest.raises(PySparkException) as caught:
        frame.count()
    assert "OptionError: Unknown column 'partition'. The columns are: brokerName string" in str(
        caught.value
    )


# ---- traps --------------------------------------------------------------------------------------


@pytest.mark.spark_versions
def test_one_frame_filtered_in_two_ways(spark: SparkSession, golden: Golden) -> None:
    # With pushFilters implemented, Spark fails here, or gives the rows of one side twice.
    frame = reader(spark).load(str(golden("basic") / "store"))
    both = frame.where("queueId = 3").unionAll(frame.where("queueId = 1")).select("queueId")
    counts = {row["queueId"]: row["count"] for row in both.groupBy("queueId").count().collect()}
    assert counts == {3: 332, 1: 334}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert frame.where("queueId = 3").count() == 332
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark_versions
def test_a_plan_without_partitions_and_a_plan_that_is_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.put(100)
    growing.put(1, {"quiet": 1})
    nothing = reader(spark, endingOffsets='{"quiet":{"0":0}}', subscribe="quiet")
    assert nothing.load(str(growing.path)).count() == 0
    frame = reader(spark).load(str(growing.path))
    assert frame.count() == 101
    growing.put(10)
    # A loaded frame is a snapshot, whatever is written in the meantime; 4.0 plans each action.
    assert frame.count() == (101 if PLANS_ONCE else 111)
    assert reader(spark).load(str(growing.path)).count() == 111


def test_a_store_that_the_executors_cannot_see(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    shutil.copytree(golden("tiny") / "store", tmp_path / "store")
    frame = reader(spark).load(str(tmp_path / "store"))
    # The plan alone: a worker that had read the store already could hold its files open.
    assert frame.rdd.getNumPartitions() > 0
    (tmp_path / "store").rename(tmp_path / "moved")
    with pytest.raises(PySparkException) as caught:
        frame.count()
    assert f"A task on host {socket.gethostname()} cannot find" in str(caught.value)
    assert "Stores must be accessible to all executors" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"startingOfsets": "earliest"}, "{tiny}", "Did you mean startingOffsets?"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "{tiny}", "contradict each other"),
        ({"subscribe": "Nope"}, "{tiny}", "Topic 'Nope' does not exist"),
        ({}, "{tmp}", "commitlog"),
        ({}, "memory://store", "is in the memory of one process"),
    ],
)
def test_errors_are_readable(
    spark: SparkSession,
    options: dict[str, str],
    path: str,
    words: str,
    golden: Golden,
    tmp_path: Path,
) -> None:
    where = path.format(tiny=golden("tiny") / "store", tmp=tmp_path)
    with pytest.raises(AnalysisException) as caught:
        reader(spark, **options).load(where).count()
    text = str(caught.value)
    assert words in text
    assert 'File "' not in text
    assert "During handling" not in text


@pytest.mark.spark_versions
def test_an_option_that_is_none_is_told_by_load(spark: SparkSession, golden: Golden) -> None:
    with pytest.raises(AnalysisException, match="Unknown option 'subscribed'"):
        reader(spark, subscribed="T").load(str(golden("tiny") / "store"))


# ---- SQL ----------------------------------------------------------------------------------------


@pytest.mark.spark_versions
def test_sql_tables_and_views(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "with space" / "store"
    shutil.copytree(golden("basic") / "store", store)
    options = f"path '{store}', subscribe 'TopicTest', STARTINGoffsets 'earliest'"
    create = (
        f"CREATE TABLE messages USING rmqstore OPTIONS ({options}) "
        "COMMENT 'all of them' TBLPROPERTIES ('team'='a')"
    )
    if not KEEPS_TABLE_OPTIONS:
        check_view_in_place_of_a_table(spark, create, options)
        return
    spark.sql(create)
    try:
        counted = "SELECT count(*), min(topic), max(topic), min(brokerName) FROM messages"
        assert tuple(spark.sql(counted).first() or ()) == (
            667, "TopicTest", "TopicTest", "with space",
        )  # fmt: skip
        # Options of the query go before those of the table.
        with_options = f"{counted} WITH (startingOffsets = '{_all_but_ten()}')"
        row = spark.sql(with_options).first()
        assert row is not None
        assert row[0] == 40
        spark.sql(f"CREATE TEMPORARY VIEW some_messages USING rmqstore OPTIONS ({options})")
        assert spark.table("some_messages").count() == 667
        spark.sql(f"CREATE TABLE columns_given (topic string) USING rmqstore OPTIONS ({options})")
        with pytest.raises(AnalysisException, match="without a list of columns"):
            spark.table("columns_given").count()
        with pytest.raises(AnalysisException, match="Did you mean subscribe"):
            spark.sql("CREATE TABLE wrong USING rmqstore OPTIONS (path '/x', subscrib 'a')")
    finally:
        for table in ("messages", "columns_given", "wrong"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.catalog.dropTempView("some_messages")


def check_view_in_place_of_a_table(spark: SparkSession, create: str, options: str) -> None:
    """Before Spark 4.3: the table is refused, and what the error names instead works."""
    with pytest.raises(AnalysisException) as caught:
        spark.sql(create)
    assert "A table of this format needs Spark 4.3 or newer" in str(caught.value)
    assert "CREATE TEMPORARY VIEW t USING rmqstore OPTIONS (...)" in str(caught.value)
    assert not spark.catalog.tableExists("messages")
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rmqstore OPTIONS ({options})")
    try:
        counted = "SELECT count(*), min(topic), max(topic), min(brokerName) FROM messages"
        assert tuple(spark.sql(counted).first() or ()) == (
            667, "TopicTest", "TopicTest", "with space",
        )  # fmt: skip
        # The schema of a view carries no store.
        with pytest.raises(AnalysisException, match="Option path is missing"):
            spark.read.format("rmqstore").schema(spark.table("messages").schema).load().count()
        # Spark does not ask for the schema of such a table, so nothing can refuse to create it.
        spark.sql(f"CREATE TABLE columns_given (topic string) USING rmqstore OPTIONS ({options})")
        assert all(not field.metadata for field in spark.table("columns_given").schema.fields)
        with pytest.raises(AnalysisException, match=r"only on Spark 4\.3 .* TEMPORARY VIEW"):
            spark.table("columns_given").count()
    finally:
        spark.sql("DROP TABLE IF EXISTS columns_given")
        spark.catalog.dropTempView("messages")


def _all_but_ten() -> str:
    return '{"TopicTest":{"0":157,"1":157,"2":157,"3":156}}'


# ---- discovery ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broken_installation_leaves_other_sources_alone(tmp_path: Path) -> None:
    broken = tmp_path / "rmqstore_spark"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('numpy is not what it should be')")
    shutil.copy(ROOT / "pyspark_rmqstore.py", tmp_path)
    (tmp_path / "pyspark_other.py").write_text(
        textwrap.dedent("""
            from pyspark.sql.datasource import DataSource, DataSourceReader

            class Reader(DataSourceReader):
                def read(self, partition):
                    yield (42,)

            class DefaultSource(DataSource):
                @classmethod
                def name(cls):
                    return "other"

                def schema(self):
                    return "answer int"

                def reader(self, schema):
                    return Reader()
        """)
    )
    script = textwrap.dedent("""
        from pyspark.sql import SparkSession
        spark = (
            SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR").getOrCreate()
        )
        print("other:", spark.read.format("other").load().first()["answer"])
        try:
            spark.read.format("rmqstore").load("/x")
        except Exception as error:
            print("rmqstore:", str(error))
        spark.stop()
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            **quick_java(),
            "PYTHONPATH": str(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "other: 42" in done.stdout, done.stderr
    assert "rmqstore-spark is installed but cannot be imported" in done.stdout
    assert "numpy is not what it should be" in done.stdout


def test_the_planner_imports_little() -> None:
    """Spark starts a process for each step of a query: what `load` needs must be cheap."""
    script = textwrap.dedent("""
        import sys, pyspark.sql.datasource
        before = set(sys.modules)
        import pyspark_rmqstore
        print(*{name.partition(".")[0] for name in set(sys.modules) - before})
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"pyspark_rmqstore", "rmqstore_spark"}
