"""Writing through Spark, two cores, into a store process: against a sink that only takes rows.

And against Spark's own files of the same rows.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.figures import Figure
from benchmarks.spark import alternately, session
from benchmarks.stores import Stores, record_size
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
_AIM_TWICE: Final = 0.85
_AIM_PARQUET: Final = {"exactly-once": 0.75, "at-least-once": 0.9}
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

    @property
    def log_bytes(self) -> int:
        """Bytes of the log."""
        return int(self.client.stats()["commitLogMaxOffset"])

    @property
    def written_bytes(self) -> int:
        """Bytes that the process has written to the disk, or will have when all is flushed."""
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        raise SystemExit("the system does not tell how much a process has written")


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
    seconds = alternately({
        "exactly-once": lambda: served.write(frame, "exactly-once"),
        "at-least-once": lambda: served.write(frame, "at-least-once"),
        "null": lambda: frame.write.format("nullarrow").mode("append").save(),
        "parquet": lambda: frame.write.mode("overwrite").parquet(
            parquet, compression="uncompressed"
        ),
    })  # fmt: skip
    for guarantee in ("exactly-once", "at-least-once"):
        ratio = seconds["null"] / seconds[guarantee]
        aimed = guarantee == "exactly-once"
        yield Figure(
            _SECTION,
            f"{size} B, {guarantee}",
            _rate(count, seconds[guarantee]),
            "a sink that takes Arrow batches and does nothing",
            _rate(count, seconds["null"]),
            f"{ratio:.2f}",
            "0.7" if aimed else "",
            ("yes" if ratio >= 0.7 else "no") if aimed else "",
        )
    yield _compared(size, count, seconds, "exactly-once", "at-least-once", _AIM_TWICE)
    for guarantee, aim in _AIM_PARQUET.items():
        yield _compared(size, count, seconds, guarantee, "parquet", aim)
    ratio = count / seconds["exactly-once"] / _NETWORK_PRODUCER
    yield Figure(
        _SECTION,
        f"{size} B, exactly-once",
        _rate(count, seconds["exactly-once"]),
        "RocketMQ's producer over the network",
        f"{_NETWORK_PRODUCER / 1e6:.3f} M/s",
        f"{ratio:.1f}",
        "10",
        "yes" if ratio > 10 else "no",
    )


def _compared(
    size: int, count: int, seconds: Mapping[str, float], what: str, other: str, aim: float
) -> Figure:
    """Two ways to write the same rows, which took turns."""
    against = "Spark's own Parquet files, uncompressed" if other == "parquet" else other
    ratio = seconds[other] / seconds[what]
    return Figure(
        _SECTION,
        f"{size} B, {what}",
        _rate(count, seconds[what]),
        against,
        _rate(count, seconds[other]),
        f"{ratio:.2f}",
        str(aim),
        "yes" if ratio >= aim else "no",
    )


def _written_figures(frame: DataFrame, size: int, served: ServedStore) -> Iterator[Figure]:
    """What the store process writes to disk for a batch, once its files exist."""
    served.write(frame, "at-least-once")
    _, once = _written(frame, "at-least-once", served)
    log, written = _written(frame, "exactly-once", served)
    name = f"{size} B, exactly-once: bytes that the store process writes to disk"
    for against, other in (("bytes of the log", log), ("at-least-once", once)):
        ratio = written / other
        yield Figure(
            _SECTION,
            name,
            f"{written / 1e6:.0f} MB",
            against,
            f"{other / 1e6:.0f} MB",
            f"{ratio:.2f}",
            f"at most {_AIM_WRITTEN}",
            "yes" if ratio <= _AIM_WRITTEN else "no",
        )


def _written(frame: DataFrame, guarantee: str, served: ServedStore) -> tuple[int, int]:
    """Bytes by which the log grows with a frame, and bytes written to disk for all files."""
    log, written = served.log_bytes, served.written_bytes
    served.write(frame, guarantee)
    return served.log_bytes - log, served.written_bytes - written


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e6:.2f} M/s"
