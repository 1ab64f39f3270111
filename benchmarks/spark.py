"""Whole queries through Spark, two cores, into the sink that throws rows away."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import benchmarks
from benchmarks.figures import Figure
from benchmarks.stores import Shape, Stores, record_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["alternately", "memory_figures", "session", "spark_figures"]

ROOT: Final = Path(__file__).resolve().parents[1]
_CORES: Final = 2
_ROUNDS: Final = 5
_MESSAGES: Final = {100: 4_000_000, 1024: 1_000_000}
_MOST_GROWTH: Final = 256 << 20

_AIMS: Final = {"all columns": 0.88, "topic, queueOffset, body": 0.85}

COLUMNS: Final = {"all columns": None, "topic, queueOffset, body":
                  "topic string, queueOffset bigint, body binary"}  # fmt: skip


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local session with the sources of the benchmarks."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    import rmqstore_spark
    from benchmarks.sources import NullArrowSink, ReadyMadeSource, WatchedSource

    cloudpickle.register_pickle_by_value(benchmarks)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder:
        spark = (
            SparkSession.builder.master(f"local[{_CORES}]")
            .appName("rmqstore-bench")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", folder)
            .getOrCreate()
        )
        rmqstore_spark.register(spark)
        spark.dataSource.register(ReadyMadeSource)
        spark.dataSource.register(WatchedSource)
        spark.dataSource.register(NullArrowSink)
        try:
            yield spark
        finally:
            spark.stop()


def _read(
    spark: SparkSession, kind: str, store: Path, schema: str | None, **options: object
) -> None:
    reader = spark.read.format(kind).options(**{k: str(v) for k, v in options.items()})
    if schema is not None:
        reader = reader.schema(schema)
    reader.load(str(store)).write.format("noop").mode("overwrite").save()


def alternately(ways: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each way; they take turns, so that the machine's mood hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def spark_figures(stores: Stores) -> Iterator[Figure]:
    """End to end against ready-made batches; by log against by queue; a tag against all."""
    with session() as spark:
        for body, messages in _MESSAGES.items():
            shape = Shape(body, 64, messages)
            store = stores(shape)
            size = messages * record_size(body) // _CORES + 1
            for what, schema in COLUMNS.items():
                yield from _against_ready_made(spark, store, shape, what, schema, size)
            yield from _against_the_whole(spark, store, shape, size)


def _against_ready_made(
    spark: SparkSession, store: Path, shape: Shape, what: str, schema: str | None, size: int
) -> Iterator[Figure]:
    seconds = alternately({
        "rmqstore": lambda: _read(
            spark, "rmqstore", store, schema, maxBytesPerPartition=size),
        "readymade": lambda: _read(
            spark, "readymade", store, schema, maxBytesPerPartition=size,
            rows=shape.count // _CORES),
        "queue": lambda: _read(
            spark, "rmqstore", store, schema, planBy="queue"),
    })  # fmt: skip
    ratio = seconds["readymade"] / seconds["rmqstore"]
    yield Figure(
        f"Spark, noop sink, local[{_CORES}], 64 queues, {shape.body_size} B",
        f"{what}",
        _rate(shape, seconds["rmqstore"]),
        "ready-made batches",
        _rate(shape, seconds["readymade"]),
        f"{ratio:.2f}",
        f"{_AIMS[what]}",
        "yes" if ratio >= _AIMS[what] else "no",
    )
    ratio = seconds["queue"] / seconds["rmqstore"]
    yield Figure(
        f"Spark, noop sink, local[{_CORES}], 64 queues, {shape.body_size} B",
        f"{what}, planBy=commitlog",
        _rate(shape, seconds["rmqstore"]),
        "planBy=queue",
        _rate(shape, seconds["queue"]),
        f"{ratio:.1f}",
    )


def _against_the_whole(
    spark: SparkSession, store: Path, shape: Shape, size: int
) -> Iterator[Figure]:
    seconds = alternately({
        "all": lambda: _read(spark, "rmqstore", store, None, maxBytesPerPartition=size),
        "some": lambda: _read(
            spark, "rmqstore", store, None, maxBytesPerPartition=size, tags="Tag07"),
    })  # fmt: skip
    ratio = seconds["all"] / seconds["some"]
    yield Figure(
        f"Spark, noop sink, local[{_CORES}], 64 queues, {shape.body_size} B",
        "tags that 1 % have, all columns",
        f"{seconds['some']:.2f} s",
        "no tags",
        f"{seconds['all']:.2f} s",
        f"{ratio:.1f}",
        "10",
        "yes" if ratio >= 10 else "no",
    )


def _rate(shape: Shape, seconds: float) -> str:
    return f"{shape.count / seconds / 1e6:.2f} M/s"


def memory_figures(stores: Stores, gigabytes: int) -> Iterator[Figure]:
    """One partition over a long queue: how much its worker grows."""
    shape = Shape(1024, 1, gigabytes * 10**9 // record_size(1024) + 1)
    store = stores(shape)
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        _read(spark, "watched", store, None, maxBytesPerPartition="1t", notes=notes)
        rows, growth = map(int, notes.read_text().split())
    if rows != shape.count:
        raise AssertionError(f"{rows} rows came out of {shape.count}")
    yield Figure(
        "Memory",
        f"one partition over {gigabytes} GB: growth of its worker",
        f"{growth / 2**20:.0f} MiB",
        aim="under 256 MiB",
        met="yes" if growth < _MOST_GROWTH else "no",
    )
