"""Writing through Spark, two cores, into a store process: against a sink that only takes rows.

And against Spark's own files of the same rows.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from benchmarks.means.stores import Stores, record_size
from benchmarks.report.figures import Figure, ratio_cells, spread
from benchmarks.spark.queries import Turns, session
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ServedStore", "rows_to_write", "served_store", "sink_figures"]

_CORES: Final = 2
_MESSAGES: Final = {100: 1_000_000, 1024: 300_000, 4096: 100_000}
_NETWORK_PRODUCER: Final = 54_000
"""Messages a second that RocketMQ's own producer gets over the network, on such a machine."""
_WRITTEN_BYTES: Final = 128 << 20
"""Bytes of the batch whose writes to disk are counted: it is staged in memory."""
_WRITTEN_ROUNDS: Final = 3
_WRITTEN_BATCHES: Final = 8
"""Batches that share a flush: that of an IndexFile writes all its slots (20 MB)."""
_LARGE_ROWS: Final = 600_000
"""Of 1 KiB: a batch that exceeds `stagingMemoryBytes`."""
_ENTRIES: Final = 60
"""Bytes of a message in its queue, and in the index for its UNIQ_KEY and its key."""
_NULL: Final = "a sink that takes Arrow batches and does nothing"
_PARQUET: Final = "Spark's own Parquet files, uncompressed"
_COMPARED: Final = (
    ("exactly-once", _NULL, 0.7),
    ("at-least-once", _NULL, None),
    ("exactly-once", "at-least-once", 0.85),
    ("exactly-once", _PARQUET, 0.75),
    ("at-least-once", _PARQUET, 0.9),
)
_AIM_WRITTEN: Final = 1.1
_SECTION: Final = f"Spark sink, local[{_CORES}], keys and tags, queues and index caught up"
_DISK_BYTES: Final = 512 << 20
_DISK_STEP: Final = 8 << 20
_DISK_ROUNDS: Final = 3


def sink_figures(stores: Stores) -> Iterator[Figure]:
    """Write frames of several body sizes; each takes turns with the sink that does nothing."""
    yield _disk_figure(stores.folder)
    with session() as spark:
        for size, count in _MESSAGES.items():
            frame = rows_to_write(spark, size, count)
            with served_store(stores.folder) as served:
                yield from _figures(frame, size, count, served)
            with served_store(stores.folder) as served:
                few = _WRITTEN_BYTES // record_size(size)
                yield from _written_figures(rows_to_write(spark, size, few), size, served)
        with served_store(stores.folder) as served:
            yield _large_figure(rows_to_write(spark, 1024, _LARGE_ROWS), served)


def _disk_figure(folder: Path) -> Figure:
    """How fast bytes get into a file of the disk and are flushed, without any store."""
    rate = statistics.median(_disk_rate(folder) for _ in range(_DISK_ROUNDS))
    return Figure(_SECTION, "the disk: written and fdatasynced, no store", f"{rate / 1e6:.0f} MB/s")


def _disk_rate(folder: Path) -> float:
    """Bytes a second into a new file whose room is reserved, as a segment's is."""
    folder.mkdir(parents=True, exist_ok=True)
    step = os.urandom(_DISK_STEP)
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, _DISK_BYTES)
        os.fsync(descriptor)
        began = time.perf_counter()
        for at in range(0, _DISK_BYTES, _DISK_STEP):
            os.pwrite(descriptor, step, at)
        os.fdatasync(descriptor)
        return _DISK_BYTES / (time.perf_counter() - began)


def rows_to_write(spark: SparkSession, size: int, count: int) -> DataFrame:
    """Rows that cost next to nothing to make: what is measured is writing them."""
    from pyspark.sql import functions

    number = functions.col("id")
    return spark.range(count, numPartitions=_CORES).select(
        functions.lit(bytes(i % 251 for i in range(size))).alias("body"),
        functions.concat(functions.lit("order-"), number).alias("keys"),
        functions.lit("TagA").alias("tags"),
    )


class ServedStore(NamedTuple):
    """A store process of its own.

    Attributes:
        folder: for other files, on the disk of the store.
        endpoint: where it is served.
        client: a client.
        pid: the process.
    """

    folder: Path
    endpoint: str
    client: StoreClient
    pid: int

    def write(self, frame: DataFrame, guarantee: str) -> None:
        """Write a frame, and wait until queues and index have it."""
        (
            frame.write.format("rmqstore").mode("append")
            .options(endpoint=self.endpoint, topic="orders", deliveryGuarantee=guarantee).save()
        )  # fmt: skip
        while self.client.stats()["dispatchBehindBytes"]:
            time.sleep(0.005)

    def counted(self, frame: DataFrame, guarantee: str, times: int = 1) -> Written:
        """Write a frame, and count what the process writes until all of it is on disk.

        Args:
            frame: the rows.
            guarantee: `deliveryGuarantee`.
            times: how often it is written before that.
        """
        process = psutil.Process(self.pid)
        log, disk, cpu = self._flushed(), process.io_counters().write_bytes, process.cpu_times()
        for _ in range(times):
            self.write(frame, guarantee)
        log = self._flushed() - log
        now = process.cpu_times()
        return Written(
            log,
            process.io_counters().write_bytes - disk,
            now.user - cpu.user,
            now.system - cpu.system,
        )

    def _flushed(self) -> int:
        """Wait until everything is on disk; return the bytes of the log."""
        self.client.flush()
        return int(self.client.stats()["commitLogMaxOffset"])


class Written(NamedTuple):
    """What a write cost the store process.

    Attributes:
        log: bytes by which the log grew.
        disk: bytes written to disk, of all files.
        user: seconds of CPU in the process.
        system: seconds of CPU in the kernel.
    """

    log: int
    disk: int
    user: float
    system: float


@contextmanager
def served_store(folder: Path) -> Iterator[ServedStore]:
    """A new store and its process, as it is configured without a word, and a client."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="sink-", dir=folder))
    try:
        process = EmbeddedStore(path / "store")
        with process as endpoint, StoreClient(endpoint) as client:
            client.create_topic("orders", write_queue_nums=8, read_queue_nums=8)
            yield ServedStore(path, endpoint, client, int(process.pid or 0))
    finally:
        shutil.rmtree(path)


def _figures(frame: DataFrame, size: int, count: int, served: ServedStore) -> Iterator[Figure]:
    parquet = str(served.folder / "parquet")
    turns = Turns({
        "exactly-once": lambda: served.write(frame, "exactly-once"),
        "at-least-once": lambda: served.write(frame, "at-least-once"),
        _NULL: lambda: frame.write.format("nullarrow").mode("append").save(),
        _PARQUET: lambda: frame.write.mode("overwrite").parquet(
            parquet, compression="uncompressed"
        ),
    }, served.pid)  # fmt: skip
    for guarantee, other, aim in _COMPARED:
        ratios = turns.ratios(guarantee, other)
        yield Figure(
            _SECTION,
            f"{size} B, {guarantee}",
            _rate(count, turns[guarantee]),
            other,
            _rate(count, turns[other]),
            *ratio_cells(statistics.median(ratios), aim),
            note=f"against {other}: {spread(ratios)}",
        )
    ratio = count / turns["exactly-once"] / _NETWORK_PRODUCER
    yield Figure(
        _SECTION,
        f"{size} B, exactly-once",
        _rate(count, turns["exactly-once"]),
        "RocketMQ's producer over the network",
        f"{_NETWORK_PRODUCER / 1e6:.3f} M/s",
        *ratio_cells(ratio, 10),
    )
    yield from turns.cpu_figures(_SECTION, f"{size} B", count)


def _written_figures(frame: DataFrame, size: int, served: ServedStore) -> Iterator[Figure]:
    """What the store process writes to disk for a batch, once its files exist."""
    served.write(frame, "at-least-once")
    logs: list[int] = []
    disk: dict[str, list[int]] = {"exactly-once": [], "at-least-once": []}
    for _ in range(_WRITTEN_ROUNDS):
        for guarantee, counts in disk.items():
            written = served.counted(frame, guarantee)
            logs.append(written.log)
            counts.append(written.disk)
    log = statistics.median(logs)
    exactly, least = (statistics.median(counts) for counts in disk.values())
    entries = _WRITTEN_BYTES // record_size(size) * _ENTRIES
    for against, other in (
        ("bytes of the log", log),
        ("log, and entries of queues and index", log + entries),
        ("at-least-once", least),
    ):
        yield Figure(
            _SECTION,
            f"{size} B, exactly-once: bytes that the store process writes to disk",
            f"{exactly / 1e6:.0f} MB",
            against,
            f"{other / 1e6:.0f} MB",
            *ratio_cells(exactly / other, at_most=_AIM_WRITTEN),
        )
    many = served.counted(frame, "exactly-once", _WRITTEN_BATCHES)
    needed = many.log + _WRITTEN_BATCHES * entries
    yield Figure(
        _SECTION,
        f"{size} B, exactly-once, {_WRITTEN_BATCHES} batches before a flush: bytes to disk",
        f"{many.disk / 1e6:.0f} MB",
        "log, and entries of queues and index",
        f"{needed / 1e6:.0f} MB",
        *ratio_cells(many.disk / needed, at_most=_AIM_WRITTEN),
    )


def _large_figure(frame: DataFrame, served: ServedStore) -> Figure:
    """What a batch costs the store process that exceeds the memory for staged rows."""
    served.write(frame, "exactly-once")
    found = [served.counted(frame, "exactly-once") for _ in range(_WRITTEN_ROUNDS)]
    written = sorted(found, key=lambda one: one.disk)[_WRITTEN_ROUNDS // 2]
    return Figure(
        _SECTION,
        f"{written.log / 1e6:.0f} MB of 1 KiB, exactly-once: bytes that the store process writes",
        f"{written.disk / 1e6:.0f} MB",
        "bytes of the log",
        f"{written.log / 1e6:.0f} MB",
        f"{written.disk / written.log:.2f}",
        note=f"{written.user + written.system:.1f} s of CPU of the store process, "
        f"{written.system:.1f} of it in the kernel",
    )


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e6:.2f} M/s"
