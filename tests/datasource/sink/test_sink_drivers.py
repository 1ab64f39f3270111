"""Drivers that are killed, and tasks that are run again, on Spark as it is (promise 2)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from tests.datasource.sink import driver
from tests.datasource.sink.driver import AT_BATCH, MOMENTS
from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_stream import (
    FILES,
    ROWS,
    TOPIC,
    Serve,
    Start,
    arriving,
    bodies,
    run,
    source,
    writer,
)
from tests.pipelines.processes import kill_when

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["arriving"]

pytestmark = [pytest.mark.slow, pytest.mark.fault]


def test_a_driver_that_is_killed_and_another_that_goes_on(
    spark: SparkSession, serve: Serve, arriving: Path, tmp_path: Path, queries: Start
) -> None:
    """One with a query at each moment; before them, it runs one whose tasks fail.

    Those have staged half of their rows, or all of them, and are run again.
    """
    stores = {die: serve(f"store {die}") for die in ("tasks", *MOMENTS)}
    endpoints = json.dumps({die: store.endpoint for die, store in stores.items()})
    kill_when(
        lambda: all((tmp_path / moment / "reached").exists() for moment in MOMENTS),
        "tests.datasource.sink.driver", [str(tmp_path), endpoints],
    )  # fmt: skip
    assert (tmp_path / "tasks" / "ended").exists()
    store = stores["tasks"]
    assert store.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert store.commits() == FILES
    for moment in MOMENTS:
        store = stores[moment]
        committed = AT_BATCH + (moment == "after commit")
        assert store.commits() == committed
        assert store.bodies(TOPIC, least=committed * ROWS) == bodies(committed * ROWS)
        run(queries, writer(source(spark, arriving), store, tmp_path / moment / "c"))
        assert store.bodies(TOPIC, least=FILES * ROWS) == bodies()
        assert store.commits() == FILES


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
