"""What the tests through a JVM share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.datasource.schema import COLUMN_TYPES
from tests.support.stores.expected import queue_key
from tests.support.stores.records import commitlog_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows of a frame, properties as dicts."""
    rows: list[Row] = frame.toArrow().to_pylist()
    for row in rows:
        if "properties" in row:
            row["properties"] = dict(row["properties"])
    return rows


def by_broker(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of each broker, by queue, without its name."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=queue_key):
        assert tuple(row) == tuple(COLUMN_TYPES)
        found.setdefault(row.pop("brokerName"), []).append(row)
    return found


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[Callable[..., Any]]:
    """Give `start(writer)`, which starts a streaming query and stops it when the test ends."""
    started: list[Any] = []

    def start(writer: Any) -> Any:
        query = writer.start()
        started.append(query)
        return query

    yield start
    for query in started:
        query.stop()


@pytest.fixture(scope="session")
def locate(
    golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[str, list[str]]]:
    """Give `locate(kind, name)`: URLs of a golden store, and of its CommitLog folders if several.

    The kinds are `local`, a plain path, and `zip`, an archive that all workers can open.
    """
    archives = tmp_path_factory.mktemp("archives")

    def find(kind: str, name: str) -> tuple[str, list[str]]:
        folders = commitlog_folders(golden(name))
        if kind == "local":
            urls = [str(golden(name) / "store"), *map(str, folders)]
        else:
            archive = archives / f"{name}.zip"
            if not archive.exists():
                shutil.make_archive(str(archives / name), "zip", golden(name), "store")
            inner = ["store", *(f"store/{folder.name}" for folder in folders)]
            urls = [f"zip://{path}::file://{archive}" for path in inner]
        return urls[0], urls[1:] if len(folders) > 1 else []

    return find
