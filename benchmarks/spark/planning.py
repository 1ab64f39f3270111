"""Planning a batch query over many queues."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.means.stores import Shape, Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.datasource.source import RmqStoreDataSource

__all__ = ["measure", "planning_figures"]

_SHAPE: Final = Shape(100, 10_000, 500_000, {f"topic{n:03}": 100 for n in range(100)})


def measure(store: str) -> float:
    """Seconds from opening the store to its partitions, as Spark asks for them."""
    began = time.perf_counter()
    source = RmqStoreDataSource({"path": store})
    source.reader(source.schema()).partitions()
    return time.perf_counter() - began


def planning_figures(stores: Stores) -> Iterator[Figure]:
    """Each time in a new process, as Spark has it."""
    store = str(stores(_SHAPE))
    seconds = statistics.median(
        [in_child("benchmarks.spark.planning:measure", store=store) for _ in range(5)]
    )
    yield Figure(
        "Planning",
        "10,000 queues of 100 topics",
        f"{seconds:.2f} s",
        aim="under 2 s",
        met="yes" if seconds < 2 else "no",
    )
