"""The first write of a session, which starts workers and loads modules, against its second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from benchmarks.spark.queries import session
from benchmarks.spark.sink import rows_to_write, served_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["first_write_figures", "null_writes", "store_writes"]

_SECTION: Final = "First write of a Spark session, 300,000 messages of 1 KiB, exactly once"
_BODY, _ROWS = 1024, 300_000
_ROUNDS: Final = 3
_TIMES_SECOND: Final = 1.5


def first_write_figures(stores: Stores) -> Iterator[Figure]:
    """Two writes in each of some new sessions, in turns with the sink that does nothing."""
    folder = str(stores.folder)
    ours: list[Sequence[float]] = []
    null: list[Sequence[float]] = []
    for _ in range(_ROUNDS):
        ours.append(in_child("benchmarks.spark.first_write:store_writes", folder=folder))
        null.append(in_child("benchmarks.spark.first_write:null_writes"))
    first, second = (statistics.median(seconds) for seconds in zip(*ours, strict=True))
    null_first, null_second = (statistics.median(seconds) for seconds in zip(*null, strict=True))
    aim = _TIMES_SECOND * second + null_first - null_second
    yield Figure(
        _SECTION,
        "the first write",
        f"{first:.1f} s",
        "the second",
        f"{second:.1f} s",
        f"{first / second:.1f}",
        f"at most {aim:.1f} s",
        "yes" if first <= aim else "no",
        note=f"the sink that does nothing: {null_first:.1f} s, then {null_second:.1f} s; the aim "
        f"is {_TIMES_SECOND} times the second write, and the difference of these",
    )


def store_writes(folder: str) -> list[float]:
    """Seconds of the first and the second write of a new session into a new store."""
    with session() as spark, served_store(Path(folder)) as store:
        frame = rows_to_write(spark, _BODY, _ROWS)
        return [_seconds_of_store(store.endpoint, frame) for _ in range(2)]


def _seconds_of_store(endpoint: str, frame: DataFrame) -> float:
    began = time.perf_counter()
    writer = frame.write.format("rmqstore").mode("append")
    writer.options(endpoint=endpoint, topic="orders").save()
    return time.perf_counter() - began


def null_writes() -> list[float]:
    """Seconds of the same two writes into the sink that does nothing."""
    with session() as spark:
        frame = rows_to_write(spark, _BODY, _ROWS)
        return [_seconds_of_null(frame) for _ in range(2)]


def _seconds_of_null(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("nullarrow").mode("append").save()
    return time.perf_counter() - began
