"""Puts of encoded blocks and of single messages in this process, against RocketMQ's own."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.means.child import in_child
from benchmarks.means.stores import BODY_SIZES, Stores, record_size
from benchmarks.report.figures import Figure
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic, record_columns
from tests.support.messages.traffic import Traffic

__all__ = [
    "measure_blocks",
    "measure_single",
    "message_columns",
    "new_store",
    "writer_figures",
]

_SECTION: Final = "StoreWriter.put, ASYNC_FLUSH, queues and index caught up"
_SYNC_SECTION: Final = "StoreWriter.put, SYNC_FLUSH, one 1 KiB message a put"
BLOCK_BYTES: Final = 4 << 20
_BYTES: Final = 512 << 20
_ROUNDS: Final = 5
_QUEUES: Final = (1, 64)
_ROCKETMQ: Final = {100: 0.60, 1024: 0.29, 4096: 0.08}
"""RocketMQ 4.9.8's best in-process, batches of 32 or single puts: million messages a second."""
_AIM: Final = 3.0
_AIM_ENCODED: Final = 1.5

_SYNC_SECONDS: Final = 3.0
_SYNC_BODY: Final = 1024
_RAW_SECONDS: Final = 1.0
_RAW_BYTES: Final = 64 << 20
_SYNC_ROCKETMQ: Final = {1: 2_900, 4: 5_900, 16: 15_600}
"""RocketMQ 4.9.8 in-process: messages a second by threads."""


def writer_figures(stores: Stores) -> Iterator[Figure]:
    """Measure puts by body size and queues, with and without encoding, and under SYNC_FLUSH."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    place = str(stores.folder)
    for body_size in BODY_SIZES:
        for queues in _QUEUES:
            rates = in_child(
                f"{__name__}:measure_blocks",
                place=place,
                body_size=body_size,
                queues=queues,
            )
            name = f"{body_size} B, {queues} queue{'s' if queues > 1 else ''}"
            best = _ROCKETMQ[body_size]
            for what, aim in (("encoded", _AIM), ("encoding included", _AIM_ENCODED)):
                per_second, cpu = rates[what]
                rate = per_second / 1e6
                yield Figure(
                    _SECTION,
                    f"{name}, {what}",
                    f"{rate:.2f} M msg/s",
                    "RocketMQ's best in-process",
                    f"{best:.2f} M msg/s",
                    f"{rate / best:.1f}",
                    f"{aim}",
                    "yes" if rate / best >= aim else "no",
                    f"{cpu * 1e9:,.0f} ns of CPU a message, of all threads",
                )
    for threads, other in _SYNC_ROCKETMQ.items():
        rate, raw = in_child(f"{__name__}:measure_single", place=place, threads=threads)
        yield Figure(
            _SYNC_SECTION,
            f"{threads} thread{'s' if threads > 1 else ''}",
            f"{rate:,.0f} msg/s",
            "RocketMQ in-process",
            f"{other:,} msg/s",
            f"{rate / other:.2f}",
            "1.0",
            "yes" if rate >= other else "no",
            f"one thread that only writes as much and waits for the disk: {raw:,.0f} a second",
        )


def measure_blocks(place: str, body_size: int, queues: int) -> dict[str, tuple[float, float]]:
    """Of blocks that are ready, and of columns that are encoded first.

    Returns:
        Messages a second, and seconds of CPU a message; medians.
    """
    count = _BYTES // record_size(body_size)
    columns = message_columns(count, body_size, queues)
    blocks = [encode_records(batch).data for batch in columns]

    def put_blocks(store: StoreWriter) -> None:
        for block in blocks:
            _require(store, block)

    def put_columns(store: StoreWriter) -> None:
        for batch in columns:
            _require(store, encode_records(batch).data)

    ways: dict[str, Callable[[StoreWriter], None]] = {
        "encoded": put_blocks, "encoding included": put_columns,
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):  # in turns: the machine is not the same all the time
        for name, way in ways.items():
            with new_store(Path(place), StoreConfig(), queues) as store:
                begin, cpu = time.perf_counter(), time.process_time()
                way(store)
                while store.stats()["dispatchBehindBytes"]:
                    time.sleep(0.0002)
                rates[name].append(count / (time.perf_counter() - begin))
                costs[name].append((time.process_time() - cpu) / count)
    return {name: (statistics.median(rates[name]), statistics.median(costs[name])) for name in ways}


def measure_single(place: str, threads: int) -> tuple[float, float]:
    """Messages a second of threads that each wait for their message to be on disk.

    Returns:
        That, and how often a second the disk can be waited for: half of it measured before, half
        after.
    """
    (block,) = encoded_traffic(Traffic(1, body_size=_SYNC_BODY))
    stop = threading.Event()
    counts = [0] * threads
    config = StoreConfig().with_overrides({"flushDiskType": "SYNC_FLUSH"})
    before = _raw_syncs(place, len(block))
    with new_store(Path(place), config, 1) as store:

        def put(number: int) -> None:
            while not stop.is_set():
                _require(store, block.copy())
                counts[number] += 1

        workers = [threading.Thread(target=put, args=(number,)) for number in range(threads)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        time.sleep(_SYNC_SECONDS)
        stop.set()
        for worker in workers:
            worker.join()
        rate = sum(counts) / (time.perf_counter() - begin)
    return rate, (before + _raw_syncs(place, len(block))) / 2


def _raw_syncs(place: str, size: int) -> float:
    """Return how many writes of a number of bytes, each flushed to disk, a file takes a second."""
    data = bytes(size)
    with tempfile.NamedTemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, _RAW_BYTES)
        begin, count = time.perf_counter(), 0
        while (took := time.perf_counter() - begin) < _RAW_SECONDS:
            os.pwrite(file.fileno(), data, count * size % (_RAW_BYTES - size))
            os.fdatasync(file.fileno())
            count += 1
    return count / took


def message_columns(count: int, body_size: int, queues: int) -> list[pa.RecordBatch]:
    """Messages to a topic `orders`, in columns, each batch making a block of some 4 MiB."""
    most = BLOCK_BYTES // record_size(body_size)
    columns = []
    for batch in Traffic(count, topics={"orders": queues}, body_size=body_size).batches():
        step = -(-len(batch) // -(-len(batch) // most))  # so that all are of much the same size
        columns += [record_columns(batch.slice(at, step)) for at in range(0, len(batch), step)]
    return columns


@contextmanager
def new_store(place: Path, config: StoreConfig, queues: int) -> Iterator[StoreWriter]:
    """A store with a topic `orders`, removed afterwards."""
    folder = tempfile.mkdtemp(prefix="writer-", dir=place)
    try:
        with StoreWriter.open(Path(folder) / "store", config) as store:
            store.create_topic("orders", write_queue_nums=queues)
            yield store
    finally:
        shutil.rmtree(folder)


def _require(store: StoreWriter, block: U1) -> None:
    result = store.put(block)
    if not result.ok:
        raise SystemExit(f"a put failed: {result.status} {result.remark}")
