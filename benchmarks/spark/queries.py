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
from benchmarks.means.cpu import Cpu, measured_cpu
from benchmarks.means.stores import Shape, Stores, record_size
from benchmarks.report.figures import Figure, ratio_cells, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Turns", "memory_figures", "session", "spark_figures"]

ROOT: Final = Path(__file__).resolve().parents[2]
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
    from benchmarks.spark.sources import NullArrowSink, ReadyMadeSource, WatchedSource

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


class Turns:
    """Several ways to do the same; they take turns, so that the machine's mood hits all alike.

    The first round warms up, and does not count.

    Args:
        ways: name to what is done.
        store: process number of the store process that they use.

    Attributes:
        cpu: name to the CPU of all rounds that count.
    """

    def __init__(self, ways: Mapping[str, Callable[[], None]], store: int | None = None) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in ways}
        self.cpu = {name: Cpu() for name in ways}
        for number in range(_ROUNDS + 1):
            for name, way in ways.items():
                with measured_cpu(store) as spent:
                    began = time.perf_counter()
                    way()
                    seconds = time.perf_counter() - began
                if number:
                    self._seconds[name].append(seconds)
                    self.cpu[name].add(spent)

    def __getitem__(self, name: str) -> float:
        """Return the median of a way's seconds."""
        return statistics.median(self._seconds[name])

    def ratios(self, name: str, other: str) -> list[float]:
        """Return how many times as fast as another way a way was, in each round."""
        pairs = zip(self._seconds[name], self._seconds[other], strict=True)
        return [theirs / own for own, theirs in pairs]

    def cpu_figures(self, section: str, what: str, count: int) -> Iterator[Figure]:
        """What an item of each way took, and what the cores have time for."""
        for name, cpu in self.cpu.items():
            bound, rate = cpu.bound(count * _ROUNDS), count / self[name]
            yield Figure(
                section,
                f"{what}, {name}: CPU",
                cpu.of_each(count * _ROUNDS),
                f"what {_CORES} busy cores would reach",
                f"{bound / 1e6:.2f} M/s",
                f"{rate / bound:.2f}",
            )


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
    turns = Turns({
        "rmqstore": lambda: _read(
            spark, "rmqstore", store, schema, maxBytesPerPartition=size),
        "readymade": lambda: _read(
            spark, "readymade", store, schema, maxBytesPerPartition=size,
            rows=shape.count // _CORES),
        "queue": lambda: _read(
            spark, "rmqstore", store, schema, planBy="queue"),
    })  # fmt: skip
    section = _section(shape)
    ratios = turns.ratios("rmqstore", "readymade")
    yield Figure(
        section,
        what,
        _rate(shape, turns["rmqstore"]),
        "ready-made batches",
        _rate(shape, turns["readymade"]),
        *ratio_cells(statistics.median(ratios), _AIMS[what]),
        note=f"{spread(ratios)} in {_ROUNDS} rounds",
    )
    ratio = turns["queue"] / turns["rmqstore"]
    yield Figure(
        section,
        f"{what}, planBy=commitlog",
        _rate(shape, turns["rmqstore"]),
        "planBy=queue",
        _rate(shape, turns["queue"]),
        f"{ratio:.1f}",
    )
    yield from turns.cpu_figures(section, what, shape.count)


def _against_the_whole(
    spark: SparkSession, store: Path, shape: Shape, size: int
) -> Iterator[Figure]:
    turns = Turns({
        "all": lambda: _read(spark, "rmqstore", store, None, maxBytesPerPartition=size),
        "some": lambda: _read(
            spark, "rmqstore", store, None, maxBytesPerPartition=size, tags="Tag07"),
    })  # fmt: skip
    ratio = turns["all"] / turns["some"]
    yield Figure(
        _section(shape),
        "tags that 1 % have, all columns",
        f"{turns['some']:.2f} s",
        "no tags",
        f"{turns['all']:.2f} s",
        f"{ratio:.1f}",
        "10",
        "yes" if ratio >= 10 else "no",
    )


def _section(shape: Shape) -> str:
    return f"Spark, noop sink, local[{_CORES}], 64 queues, {shape.body_size} B"


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
