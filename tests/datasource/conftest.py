"""What the tests through a JVM share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.datasource.schema import COLUMN_TYPES
from tests.support.expected import queue_key

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
