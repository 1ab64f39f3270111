"""How long a store takes to open, and how much memory its process takes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.engine.writer import message_columns
from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores, record_size
from benchmarks.report.figures import Figure
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.recovery.log_end import find_end
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import sync_file
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader.log.commitlog import CommitLog
from tests.support.stores.sparse import GIB, sparse_store

__all__ = [
    "leave_open",
    "measure_open",
    "measure_scan",
    "measure_wide",
    "recovery_figures",
    "service_memory",
]

_SECTION: Final = "Opening a store"
_BODY: Final = 1024
_LOG_BYTES: Final = 3 * GIB
_DIFFERENT_BYTES: Final = 64 << 20  # which are put again and again
_AIM: Final = 1.0  # GB/s
_SEGMENTS: Final = 100
_AIM_START: Final = 2.0  # seconds
_MANY_QUEUES: Final = 32_000
_TOPIC_QUEUES: Final = 8
_AIM_QUEUE: Final = 0.2e-3  # seconds
_CLOSED: Final = "closed, each queue has a new message"
_PUT_BYTES: Final = 2 * GIB
_STAGED_BYTES: Final = 1 * GIB
_MOST_MEMORY: Final = 400 << 20


def recovery_figures(stores: Stores) -> Iterator[Figure]:
    """Walk the log of a store that was killed; open it; open a long one, and a wide one."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with _folder(stores) as folder:
        store = folder / "killed"
        process = multiprocessing.get_context("spawn").Process(target=leave_open, args=(store,))
        process.start()
        process.join()
        (store / "checkpoint").unlink(missing_ok=True)  # nothing vouches for anything
        rate = in_child("benchmarks.engine.recovery:measure_scan", store=str(store))
        yield _rate("walk of the log, with CRC", rate, f"{_AIM} GB/s", rate >= _AIM)
        (store / "checkpoint").unlink(missing_ok=True)
        seconds = in_child("benchmarks.engine.recovery:measure_open", store=str(store))
        rate = _LOG_BYTES / seconds / 1e9
        yield _rate("killed: walk of the log, queues compared, index rebuilt", rate)
    with _folder(stores) as folder:
        topics = {f"topic-{number}": 16 for number in range(20)}
        path = sparse_store(folder / "long", _SEGMENTS, topics)
        in_child("benchmarks.engine.recovery:measure_open", store=str(path))  # makes the index
        seconds = in_child("benchmarks.engine.recovery:measure_open", store=str(path))
        yield Figure(
            _SECTION,
            f"closed cleanly: {_SEGMENTS} GB, 320 queues (sparse)",
            f"{seconds:.2f} s",
            aim=f"under {_AIM_START:.0f} s",
            met="yes" if seconds < _AIM_START else "no",
        )
    with _folder(stores) as folder:
        times = in_child("benchmarks.engine.recovery:measure_wide", store=str(folder / "wider"))
        for name in ("opened", "closed, nothing new", _CLOSED):
            each = times[name] / _MANY_QUEUES
            one = name == _CLOSED
            yield Figure(
                _SECTION,
                f"{_MANY_QUEUES:,} queues: {name}",
                f"{times[name]:.2f} s, {each * 1e6:.0f} us a queue",
                against="their files flushed one by one" if one else "",
                other=f"{times['one by one']:.2f} s" if one else "",
                ratio=f"{times['one by one'] / times[name]:.1f}" if one else "",
                aim=f"under {_AIM_QUEUE * 1e6:.0f} us a queue",
                met="yes" if each < _AIM_QUEUE else "no",
            )


def _rate(name: str, rate: float, aim: str = "", is_met: bool = False) -> Figure:
    met = ("yes" if is_met else "no") if aim else ""
    return Figure(_SECTION, name, f"{rate:.2f} GB/s", aim=aim, met=met)


def service_memory(stores: Stores) -> Iterator[Figure]:
    """The most memory that a store process takes while much goes through it."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    blocks = _blocks()
    with _folder(stores) as folder:
        process = EmbeddedStore(folder / "store")
        with process as endpoint, StoreClient(endpoint) as client:
            client.open(["orders"])
            with client.put_stream() as puts:
                for block in _until(blocks, _PUT_BYTES):
                    puts.send(block)
            with client.stage_stream() as stage:
                for block in _until(blocks, _STAGED_BYTES):
                    stage.send(block)
                staged = stage.finish()
            client.commit(CommitRequest(WriterId.of_one_write(), (staged,)))
            most = _most_memory(process.pid)
    yield Figure(
        "Memory of the store process",
        f"store process: {_PUT_BYTES / GIB:.0f} GiB of puts, a commit of "
        f"{_STAGED_BYTES / GIB:.0f} GiB",
        f"{most / 2**20:.0f} MiB",
        aim=f"under {_MOST_MEMORY >> 20} MiB",
        met="yes" if most < _MOST_MEMORY else "no",
    )


def leave_open(store: Path) -> None:
    """Write a store, and end without closing it."""
    writer = StoreWriter.open(store)
    writer.create_topic("orders", write_queue_nums=4)
    for block in _until(_blocks(), _LOG_BYTES):
        if not writer.put(block).ok:
            raise SystemExit("a put failed")
    writer.flush()
    os._exit(0)


def measure_scan(store: str) -> float:
    """GB a second of the walk that finds the log's end."""
    files = LocalFiles(64)
    log = CommitLog(StoreDirectory(files, store).commit_log())
    begin = time.perf_counter()
    end = find_end(log, log.min_offset, flushed=0, latest=2**63 - 1)
    took = time.perf_counter() - begin
    files.close()
    return (end.offset - end.start) / took / 1e9


def measure_open(store: str) -> float:
    """Seconds that a store takes to open."""
    begin = time.perf_counter()
    with StoreWriter.open(store):
        return time.perf_counter() - begin


def measure_wide(store: str) -> dict[str, float]:
    """Seconds that opening and closing a store of very many queues take, and a floor of both."""
    times: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        times[name] = time.perf_counter() - begin

    names = [f"topic-{number}" for number in range(_MANY_QUEUES // _TOPIC_QUEUES)]
    writer = StoreWriter.open(store, StoreConfig(max_topics=len(names)))
    writer.create_topics(names)
    _put_to_each(writer, names)
    writer.close()
    with timed("opened"):
        writer = StoreWriter.open(store)
    _put_to_each(writer, names)
    with timed(_CLOSED):
        writer.close()
    writer = StoreWriter.open(store)
    with timed("closed, nothing new"):
        writer.close()
    files = sorted(Path(store, "consumequeue").glob("*/*/*"))
    for path in files:
        with path.open("r+b") as file:
            file.seek(20 << 10)
            file.write(b"1")
    with timed("one by one"):
        for path in files:
            sync_file(str(path))
    return times


def _put_to_each(writer: StoreWriter, topics: Sequence[str]) -> None:
    """Put a message into each queue, and wait until it is there."""
    columns = {
        "topic": [topic for topic in topics for _ in range(_TOPIC_QUEUES)],
        "queueId": pa.array(list(range(_TOPIC_QUEUES)) * len(topics), pa.int32()),
        "body": [b"body"] * (len(topics) * _TOPIC_QUEUES),
    }
    for batch in pa.table(columns).to_batches(max_chunksize=4_000):
        if not writer.put_batch(batch).ok:
            raise SystemExit("a put failed")
    while writer.stats()["dispatchBehindBytes"]:
        time.sleep(0.01)


def _blocks() -> list[U1]:
    count = _DIFFERENT_BYTES // record_size(_BODY)
    return [encode_records(batch).data for batch in message_columns(count, _BODY, 4)]


def _until(blocks: list[U1], size: int) -> Iterator[U1]:
    """Repeat blocks until they have a number of bytes."""
    for block in cycle(blocks):
        if size <= 0:
            return
        size -= len(block)
        yield block


def _most_memory(pid: int | None) -> int:
    """Bytes of the greatest resident set that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise SystemExit("the system does not tell how much memory a process has taken")


@contextmanager
def _folder(stores: Stores) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="recovery-", dir=stores.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
