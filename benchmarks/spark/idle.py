"""What a stream costs while no message comes: CPU of all its processes, as a part of one core.

`python -m benchmarks.spark.idle` measures this alone, in about two minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.means.stores import Shape, Stores
from benchmarks.report.figures import Figure, print_table
from benchmarks.spark.queries import ROOT, session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["idle_figures"]

_SHAPE: Final = Shape(100, 1_000, 100_000, {f"topic{n:02}": 100 for n in range(10)})
_SETTLE: Final = 45.0
"""Seconds until the look-outs of a stream are as rare as they get, and the JVM has compiled."""
_MEASURE: Final = 30.0
_AIM: Final = 0.02


def idle_figures(stores: Stores) -> Iterator[Figure]:
    """A stream over 1,000 queues that has read everything; no other query runs."""
    store = stores(_SHAPE)
    with session() as spark:
        spark.range(1).count()
        without = _cores(5.0)
        query = (
            spark.readStream.format("rmqstore")
            .option("startingOffsets", "earliest")
            .load(str(store))
            .writeStream.format("noop")
            .start()
        )
        try:
            _await_all(query, _SHAPE.count)
            time.sleep(_SETTLE)
            cores = _cores(_MEASURE)
        finally:
            query.stop()
    total = sum(cores.values())
    yield Figure(
        "Idle",
        f"a stream over {_SHAPE.queues:,} queues, all processes",
        f"{total:.2%} of a core",
        "the session without a query",
        f"{sum(without.values()):.1%}",
        aim=f"under {_AIM:.0%}",
        met="yes" if total < _AIM else "no",
        note=f"{cores['python']:.1%} of it is this package's, in Python; {cores['java']:.1%} is "
        "Spark's own, which asks for news as soon as it is answered (twice a second, then)",
    )


def _await_all(query: StreamingQuery, count: int) -> None:
    """Wait until a stream has read a number of messages."""
    read, seen = 0, -1
    until = time.monotonic() + 300
    while read < count:
        for progress in query.recentProgress:
            if progress.batchId > seen:
                seen, read = progress.batchId, read + progress.numInputRows
        if time.monotonic() > until or not query.isActive:
            raise TimeoutError(f"the stream read {read} of {count} messages; {query.exception()}")
        time.sleep(0.2)


def _cores(seconds: float) -> Mapping[str, float]:
    """How much of a core Java and Python take meanwhile, in this process and those it started."""
    before = _spent()
    began = time.monotonic()
    time.sleep(seconds)
    after, took = _spent(), time.monotonic() - began
    return {
        kind: sum(
            spent - before.get(key, (kind, 0.0))[1]
            for key, (of, spent) in after.items()
            if of == kind
        )
        / took
        for kind in ("java", "python")
    }


def _spent() -> dict[tuple[int, float], tuple[str, float]]:
    """Kind and seconds of CPU of each process, by what names it."""
    found = {}
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
            kind = "java" if "java" in process.name() else "python"
            found[process.pid, process.create_time()] = kind, times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return found


if __name__ == "__main__":
    print_table(list(idle_figures(Stores(Path(ROOT) / ".bench"))))
