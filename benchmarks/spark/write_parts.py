"""Where the time of a write goes, by the size of its batch: plan, tasks, commit, and whose CPU.

Each way of writing takes turns with the others. Spark's own work is in all of them, and what the
sink that does nothing takes is its floor. Each row has a body of its own, as messages have: one
that all rows share is in a Parquet file once, however large it is.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.means.cpu import Cpu, measured_cpu
from benchmarks.means.stores import Stores, record_size
from benchmarks.report.figures import Figure, ratio_cells, spread
from benchmarks.spark.queries import session
from benchmarks.spark.sink import ServedStore, served_store
from rmqstore_spark.files.durable import start_write_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Part", "measured_parts", "write_part_figures"]

_CORES: Final = 2
_ROUNDS: Final = {0.1: 7, 1.0: 3, 4.0: 1}
"""Rounds by gigabytes of a batch, after one that warms up."""
_SIZES: Final = (100, 1024, 4096)
_DIGITS: Final = 12
_EXACTLY: Final = "exactly-once"
_LEAST: Final = "at-least-once"
_NULL: Final = "a sink that takes Arrow batches and does nothing"
_PARQUET: Final = "Spark's own Parquet files, uncompressed"
_BARE: Final = "as many bytes, written as a commit does by a process that does nothing else"
"""Into room of a file: behind a hidden head, flushed, then the head, and flushed again."""
_HEAD: Final = 4
_PIECE: Final = 4 << 20
_COMPARED: Final[tuple[tuple[str, str, Mapping[int, float]], ...]] = (
    (_EXACTLY, _PARQUET, {100: 0.75, 1024: 0.75, 4096: 0.65}),
    (_LEAST, _PARQUET, {100: 0.85, 1024: 0.85, 4096: 0.7}),
    (_EXACTLY, _LEAST, dict.fromkeys(_SIZES, 0.92)),
    (_EXACTLY, _NULL, {}),
)


class Part(NamedTuple):
    """What a write took.

    Attributes:
        plan: seconds before its first task.
        tasks: seconds from the start of the first task to the end of the last.
        commit: seconds after that, until Spark had committed it.
        queues: seconds after that, until queues and index had it.
        cpu: seconds of CPU by kind of process.
    """

    plan: float
    tasks: float
    commit: float
    queues: float
    cpu: Cpu

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.plan + self.tasks + self.commit + self.queues


def write_part_figures(stores: Stores) -> Iterator[Figure]:
    """Write batches of several sizes."""
    with session() as spark:
        for gigabytes, rounds in _ROUNDS.items():
            for size in _SIZES:
                found = measured_parts(spark, stores.folder, size, gigabytes, rounds)
                count = row_count(size, gigabytes)
                yield from _figures(_section(gigabytes), size, count, found)


def row_count(size: int, gigabytes: float) -> int:
    """Return how many messages make up a batch, as bytes of the log."""
    return int(gigabytes * 1e9) // record_size(size)


def _section(gigabytes: float) -> str:
    return f"Spark sink, local[{_CORES}], batches of {gigabytes:g} GB"


def rows_that_differ(spark: SparkSession, size: int, count: int) -> DataFrame:
    """Rows as those of `rows_to_write`, but for a number at the end of each body."""
    from pyspark.sql import functions

    number = functions.lpad(functions.col("id").cast("string"), _DIGITS, "0")
    return (
        spark.range(count, numPartitions=_CORES)
        .select(
            functions.concat(
                functions.lit(bytes(i % 251 for i in range(size - _DIGITS))), number.cast("binary")
            ).alias("body"),
            functions.concat(functions.lit("order-"), functions.col("id")).alias("keys"),
            functions.lit("TagA").alias("tags"),
        )
    )  # fmt: skip


def measured_parts(
    spark: SparkSession, folder: Path, size: int, gigabytes: float, rounds: int
) -> dict[str, list[Part]]:
    """Write a batch in each way, in turns; return what each round after the first took."""
    frame = rows_that_differ(spark, size, row_count(size, gigabytes))
    with served_store(folder) as served:
        parquet = str(served.folder / "parquet")
        ways: dict[str, Callable[[], None]] = {
            _EXACTLY: lambda: _save(served, frame, _EXACTLY),
            _LEAST: lambda: _save(served, frame, _LEAST),
            _NULL: lambda: frame.write.format("nullarrow").mode("append").save(),
            _PARQUET: lambda: frame.write.mode("overwrite").parquet(
                parquet, compression="uncompressed"
            ),
        }
        found: dict[str, list[Part]] = {name: [] for name in (*ways, _BARE)}
        for number in range(rounds + 1):
            parts = {name: _measured(spark, served, way) for name, way in ways.items()}
            parts[_BARE] = _written_bare(served, int(gigabytes * 1e9))
            if number:
                for name, part in parts.items():
                    found[name].append(part)
    return found


def _written_bare(served: ServedStore, size: int) -> Part:
    piece = memoryview(bytes(range(256)) * (_PIECE // 256))
    with measured_cpu(served.pid) as cpu, tempfile.TemporaryFile(dir=served.folder) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, size + _HEAD)
        os.fsync(descriptor)
        began = time.time()
        for at in range(_HEAD, size, _PIECE):
            count = os.pwrite(descriptor, piece[: size - at], at)
            start_write_back(descriptor, at, count)
        written = time.time()
        os.fdatasync(descriptor)
        os.pwrite(descriptor, piece[:_HEAD], 0)
        os.fdatasync(descriptor)
        ended = time.time()
    return Part(0.0, written - began, ended - written, 0.0, cpu)


def _save(served: ServedStore, frame: DataFrame, guarantee: str) -> None:
    writer = frame.write.format("rmqstore").mode("append")
    writer = writer.options(endpoint=served.endpoint, topic="orders", maxTransactionBytes="16g")
    writer.option("deliveryGuarantee", guarantee).save()


def _measured(spark: SparkSession, served: ServedStore, way: Callable[[], None]) -> Part:
    with measured_cpu(served.pid) as cpu:
        began = time.time()
        way()
        saved = time.time()
        while served.client.stats()["dispatchBehindBytes"]:
            time.sleep(0.005)
        ended = time.time()
    first, last = _task_times(spark)
    return Part(first - began, last - first, saved - last, ended - saved, cpu)


def _task_times(spark: SparkSession) -> tuple[float, float]:
    """Return when the first task of the last stage started, and when the last one ended."""
    context: Any = spark.sparkContext._jsc.sc()  # Python has no API for it
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    stages = [jobs.apply(0).stageIds().apply(n) for n in range(jobs.apply(0).stageIds().size())]
    tasks = context.statusStore().taskList(max(stages), 0, 1 << 20)
    starts, ends = [], []
    for number in range(tasks.size()):
        task = tasks.apply(number)
        start = task.launchTime().getTime() / 1e3
        starts.append(start)
        ends.append(start + int(task.duration().get()) / 1e3)
    return min(starts), max(ends)


def _figures(
    section: str, size: int, count: int, found: Mapping[str, Sequence[Part]]
) -> Iterator[Figure]:
    seconds = {
        name: statistics.median(part.seconds for part in parts) for name, parts in found.items()
    }
    for name, other, aims in _COMPARED:
        pairs = zip(found[name], found[other], strict=True)
        ratios = [theirs.seconds / own.seconds for own, theirs in pairs]
        yield Figure(
            section,
            f"{size} B, {name}",
            f"{count / seconds[name] / 1e6:.2f} M/s",
            other,
            f"{count / seconds[other] / 1e6:.2f} M/s",
            *ratio_cells(statistics.median(ratios), aims.get(size)),
            note=f"{spread(ratios)} in {len(ratios)} rounds",
        )
    commit = statistics.median(part.commit for part in found[_EXACTLY])
    yield Figure(
        section,
        f"{size} B, {_EXACTLY}: the commit, in which Spark waits",
        f"{commit:.3f} s",
        _BARE,
        f"{seconds[_BARE]:.3f} s",
        *ratio_cells(commit / seconds[_BARE]),
    )
    for name, parts in found.items():
        cpu = Cpu()
        for part in parts:
            cpu.add(part.cpu)
        rows = count * len(parts)
        plan, tasks, commit, queues = (
            statistics.median(column) for column in list(zip(*parts, strict=True))[:4]
        )
        yield Figure(
            section,
            f"{size} B, {name}: plan, tasks, commit, queues",
            f"{plan:.2f}, {tasks:.2f}, {commit:.2f}, {queues:.2f} s",
            f"CPU of a row; busy is how much of {_CORES} cores",
            cpu.of_each(rows),
            f"{cpu.seconds / _CORES / sum(part.seconds for part in parts):.2f} busy",
        )
