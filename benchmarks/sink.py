"""Writing through Spark, two cores, into a store process: against a sink that only takes rows."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Figure
from benchmarks.spark import alternately, session
from benchmarks.stores import Stores
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["sink_figures"]

_CORES: Final = 2
_MESSAGES: Final = {100: 1_000_000, 1024: 300_000, 4096: 100_000}
_NETWORK_PRODUCER: Final = 54_000
"""Messages a second that RocketMQ's own producer gets over the network, on such a machine."""
_SECTION: Final = f"Spark sink, local[{_CORES}], keys and tags, queues and index caught up"
_DISK_BYTES: Final = 512 << 20
_DISK_STEP: Final = 8 << 20
_DISK_ROUNDS: Final = 3


def sink_figures(stores: Stores) -> Iterator[Figure]:
    """Write frames of several body sizes; each takes turns with the sink that does nothing."""
    yield _disk_figure(stores.folder)
    with session() as spark:
        for size, count in _MESSAGES.items():
            frame = _frame(spark, size, count)
            with _served(stores.folder) as (endpoint, client):
                yield from _figures(frame, size, count, endpoint, client)


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


def _frame(spark: SparkSession, size: int, count: int) -> DataFrame:
    """Rows that cost next to nothing to make: what is measured is writing them."""
    from pyspark.sql import functions

    number = functions.col("id")
    return spark.range(count, numPartitions=_CORES).select(
        functions.lit(bytes(i % 251 for i in range(size))).alias("body"),
        functions.concat(functions.lit("order-"), number).alias("keys"),
        functions.lit("TagA").alias("tags"),
    )


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, StoreClient]]:
    """A new store and its process, as it is configured without a word, and a client."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="sink-", dir=folder))
    try:
        with EmbeddedStore(path / "store") as endpoint, StoreClient(endpoint) as client:
            client.create_topic("orders", write_queue_nums=8, read_queue_nums=8)
            yield endpoint, client
    finally:
        shutil.rmtree(path)


def _figures(
    frame: DataFrame, size: int, count: int, endpoint: str, client: StoreClient
) -> Iterator[Figure]:
    def write(guarantee: str) -> None:
        (
            frame.write.format("rmqstore").mode("append")
            .options(endpoint=endpoint, topic="orders", deliveryGuarantee=guarantee).save()
        )  # fmt: skip
        while client.stats()["dispatchBehindBytes"]:
            time.sleep(0.005)

    seconds = alternately({
        "exactly-once": lambda: write("exactly-once"),
        "at-least-once": lambda: write("at-least-once"),
        "null": lambda: frame.write.format("nullarrow").mode("append").save(),
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


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e6:.2f} M/s"
