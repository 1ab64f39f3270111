"""Garbage collections of a worker: what its first task has loaded is exempt from them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.datasource import tasks
from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.commit import Place
from rmqstore_spark.datasource.sink.writers import run_task
from rmqstore_spark.datasource.tasks import short_collections
from rmqstore_spark.errors import RmqStoreError
from tests.datasource.driving import batch_rows
from tests.support.processes.ports import free_port
from tests.support.stores.storebuilder import Traffic, build_store


class Knot:
    """Something that only a collection removes."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is exempt, as in a process that has run no task yet."""
    monkeypatch.setattr(tasks, "_is_exempt", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_a_first_task_leaves_is_exempt() -> None:
    with short_collections():
        kept = weakref.ref(Knot())
    gc.collect()
    assert kept() is not None


def test_what_later_tasks_leave_is_collected() -> None:
    with short_collections():
        pass
    with short_collections():
        left = weakref.ref(Knot())
    gc.collect()
    assert left() is None


def test_a_task_that_reads(tmp_path: Path) -> None:
    build_store(tmp_path / "store", Traffic(10))
    assert len(batch_rows(tmp_path / "store")) == 10
    assert gc.get_freeze_count() > 0


def test_a_task_that_writes_and_fails() -> None:
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("body", BinaryType())
    endpoint = f"rmq://127.0.0.1:{free_port()}"
    options = parse_sink_options({"endpoint": endpoint, "topic": "T", "retries": "0"}, False)
    columns = find_columns(schema, options.messages)
    with pytest.raises(RmqStoreError, match=r"127\.0\.0\.1"):
        run_task(options, columns, iter(()), Place(0, "q", 0), 0, "q")
    assert gc.get_freeze_count() > 0
