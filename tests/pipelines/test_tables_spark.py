"""The backfill into tables with Spark, and as a program that is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from rmqstore_spark.pipelines.running import run_job, run_tasks
from tests.pipelines.half_backfill import FINISHED, has_written_its_half
from tests.pipelines.lakehouse import FORMATS, LakeHouse, rows_of
from tests.pipelines.processes import kill_when, submit
from tests.pipelines.running import run_backfill
from tests.pipelines.test_backfill_spark import comparable
from tests.support.stores.expected import backed_rows, queue_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeHouse:
    return LakeHouse(request.param, tmp_path / "lake")


@pytest.mark.spark_versions_more
def test_the_table_has_the_rows_of_the_source(
    lake: LakeHouse, golden: Golden, session: SparkSession
) -> None:
    store = str(golden("live") / "store")
    run_backfill(
        store, *lake.arguments, "--includeSystemTopics", "true", "--minPartitions", "4",
        run=partial(run_tasks, session, "backfill"),
    )  # fmt: skip
    source = session.read.format("rmqstore").option("includeSystemTopics", "true").load(store)
    written = session.createDataFrame(lake.read())
    assert_df_equality(
        comparable(written.drop("date")), comparable(source),
        ignore_row_order=True, ignore_column_order=True, ignore_nullable=True,
    )  # fmt: skip


def test_errors_of_tasks_are_told(
    damaged: Path, lake: LakeHouse, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    run = partial(run_tasks, session, "backfill")
    assert run_job(lambda: run_backfill(damaged, *lake.arguments, run=run)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: a body does not match its bodyCRC in ")
    assert error.count("\n") == 1
    assert len(lake.read()) == 0


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark_versions_more
def test_a_killed_program_goes_on(lake: LakeHouse, golden: Golden, tmp_path: Path) -> None:
    arguments = [
        str(golden("basic") / "store"), *lake.arguments,
        "--maxRecordsPerPartition", "10", "--subscribe", "TopicTest,orders_v2-EU",
    ]  # fmt: skip
    kill_when(
        lambda: has_written_its_half(lake.data.glob("_backfill/*/attempts/*.json")),
        "tests.pipelines.half_backfill", arguments,
    )  # fmt: skip
    assert len(lake.read()) == 0

    said = submit("backfill", arguments, tmp_path)
    assert f"\n{FINISHED} of " in f"\n{said}"
    assert "pieces are already finished" in said
    expected = [r for r in backed_rows(golden("basic")) if not r["topic"].startswith("%")]
    assert list(map(queue_key, rows_of(lake.read()))) == list(map(queue_key, expected))
    assert lake.commits() == 1
