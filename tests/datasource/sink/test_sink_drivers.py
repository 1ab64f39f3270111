"""Drivers that are killed, and tasks that are run again, on Spark as it is (promise 2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from tests.datasource.sink import driver
from tests.datasource.sink.driver import AT_BATCH
from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_stream import (
    FILES,
    ROWS,
    TOPIC,
    Start,
    arriving,
    bodies,
    run,
    source,
    writer,
)
from tests.support.processes.surroundings import path_without_pandas
from tools.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["arriving"]

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.fault]


def drive(store: Served, folder: Path, files: Path, die: str) -> subprocess.CompletedProcess[str]:
    """Run a driver of its own until it ends, or is killed."""
    given = {
        "endpoint": store.endpoint, "arriving": str(files), "checkpoint": str(folder / "c"),
        "folder": str(folder), "die": die,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tests.datasource.sink.driver", json.dumps(given)],
        cwd=ROOT,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path_without_pandas(),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("moment", ["after staging", "before commit", "after commit"])
def test_a_driver_that_is_killed_and_another_that_goes_on(
    spark: SparkSession,
    served: Served,
    arriving: Path,
    tmp_path: Path,
    queries: Start,
    moment: str,
) -> None:
    killed = drive(served, tmp_path, arriving, moment)
    assert killed.returncode == -9, killed.stderr
    committed = AT_BATCH + (moment == "after commit")
    assert served.commits() == committed
    assert served.bodies(TOPIC, least=committed * ROWS) == bodies(committed * ROWS)
    run(queries, writer(source(spark, arriving), served, tmp_path / "c"))
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES


def test_tasks_that_fail_when_they_have_staged_are_run_again(
    served: Served, arriving: Path, tmp_path: Path
) -> None:
    done = drive(served, tmp_path, arriving, "tasks")
    assert "ended" in done.stdout, done.stderr
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES


@pytest.fixture
def failing(spark: SparkSession) -> Iterator[str]:
    """The name of the sink with a writer that fails, registered in the session."""
    cloudpickle.register_pickle_by_value(driver)  # type: ignore[no-untyped-call]
    spark.dataSource.register(driver.FailingSource)
    yield driver.FailingSource.name()
    cloudpickle.unregister_pickle_by_value(driver)  # type: ignore[no-untyped-call]


def test_each_commit_succeeds_and_spark_is_told_that_it_failed(
    spark: SparkSession,
    served: Served,
    arriving: Path,
    tmp_path: Path,
    queries: Start,
    failing: str,
) -> None:
    made = writer(
        source(spark, arriving), served, tmp_path / "c", die="commit fails", folder=tmp_path
    ).format(failing)
    for _ in range(FILES):
        with pytest.raises(StreamingQueryException, match=driver.LOST):
            run(queries, made)
    run(queries, made)
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES
    assert Counter(served.bodies(TOPIC).values()) == {1: FILES * ROWS}
