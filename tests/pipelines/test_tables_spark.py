"""The backfill into tables with Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from rmqstore_spark.pipelines.running import run_job, run_tasks
from tests.pipelines.lakehouse import FORMATS, LakeHouse
from tests.pipelines.running import run_backfill
from tests.pipelines.test_backfill_spark import comparable

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
