"""What stores in one query cost, each ten segments long: to plan, to the first rows, to follow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from benchmarks.means.child import in_child
from benchmarks.scale.opened import best, most_memory
from rmqstore_spark.datasource.source import RmqStoreDataSource
from tests.support.stores.sparse import sparse_store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["measure_sources", "plan_and_read"]

_SEGMENTS: Final = 10
_TOPICS: Final = {"orders": 8, "payments": 8}
_ROWS: Final = 160
_SHAPE: Final = {"rows": _ROWS, "last_rows": _ROWS}


def measure_sources(folder: Path, count: int) -> Mapping[str, float]:
    """Make a number of stores; measure a query and a stream of all of them."""
    for number in range(count):
        sparse_store(folder / f"broker-{number:03}" / "store", _SEGMENTS, _TOPICS, **_SHAPE)
    stores = f"{folder}/broker-*/store"
    found: dict[str, float] = {
        "plan of a query": best("benchmarks.spark.planning:measure", store=stores)
    }
    found |= in_child(f"{__name__}:plan_and_read", stores=stores, rows=_ROWS * _SEGMENTS * count)
    found |= in_child("benchmarks.scale.opened:look_seconds", store=stores)
    return found


def plan_and_read(stores: str, rows: int) -> dict[str, float]:
    """Seconds from the query to its first rows, and to all; bytes of the process that does it."""
    began = time.perf_counter()
    source = RmqStoreDataSource({"path": stores})
    reader = source.reader(source.schema())
    first, count = 0.0, 0
    for partition in reader.partitions():
        for batch in cast("Iterator[pa.RecordBatch]", reader.read(partition)):
            first = first or time.perf_counter() - began
            count += batch.num_rows
    if count != rows:
        raise SystemExit(f"{count} rows of {rows} were read")
    return {
        "plan and first rows": first,
        "plan and all rows": time.perf_counter() - began,
        "a process that plans and reads": float(most_memory()),
    }
