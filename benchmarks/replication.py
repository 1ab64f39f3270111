"""Replication over loopback: a follower that catches up, and what followers cost puts."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.child import ROOT, in_child
from benchmarks.figures import Figure
from benchmarks.stores import Stores
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.ha.follower import LogFollower
from rmqstore_spark.ha.master import Master
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["catch_up", "replication_figures"]

_SECTION: Final = "Replication over loopback, messages of 1 KiB, queues and index caught up"
_BODY: Final = 1024
_BLOCK_ROWS: Final = 2000
_BYTES: Final = int(os.environ.get("BENCH_REPLICATION_MB", "2048")) << 20
_SEGMENT: Final = 128 << 20
_PUTS: Final = 300
_AIM_MBS: Final = 500.0
_AIM_OF_DISK: Final = 0.8
_AIM_MS: Final = 3.0
_AIM_SLOWER: Final = 0.75


def replication_figures(stores: Stores) -> Iterator[Figure]:
    """Measure a follower that catches up, and puts while followers are connected."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stores.folder) as name:
        folder = Path(name)
        yield _catching_up(folder)
        yield _two_followers(folder)
        yield _acknowledged(folder)


def catch_up(master: str, path: str, end: int) -> float:
    """Follow a master up to an offset; return the seconds until queues and index have it all."""
    with StoreWriter.open(path, _config(broker_role="SLAVE", ha_master_address=master)) as store:
        begin = time.perf_counter()
        follower = LogFollower(store)
        while store.replica.end < end or store.stats()["dispatchBehindBytes"]:
            time.sleep(0.001)
        took = time.perf_counter() - begin
        follower.close()
        return took


def _catching_up(folder: Path) -> Figure:
    with _mastering(folder / "source") as (store, master):
        _put(store, _block(), _BYTES)
        end = store.published_end
        copy = str(folder / "copy")
        function = "benchmarks.replication:catch_up"
        took = in_child(function, master=master.address, path=copy, end=end)
    rate, disk = end / took / 1e6, _disk_rate(folder / "raw")
    aim = min(_AIM_MBS, _AIM_OF_DISK * disk)
    return Figure(
        _SECTION, "follower that catches up", f"{rate:,.0f} MB/s", "disk, sequential",
        f"{disk:,.0f} MB/s", f"{rate / disk:.2f}", f"{aim:,.0f} MB/s", _met(rate >= aim),
    )  # fmt: skip


def _two_followers(folder: Path) -> Figure:
    block = _block()
    with _mastering(folder / "alone") as (store, _):
        alone = _put(store, block, _BYTES // 4)
    with _mastering(folder / "followed") as (store, master), ExitStack() as ends:
        for name in ("a", "b"):
            ends.enter_context(_following(master, folder / name))
        while len(store.slaves) < 2:
            time.sleep(0.01)
        followed = _put(store, block, _BYTES // 4)
    ratio = followed / alone
    return Figure(
        _SECTION, "puts with two followers connected", f"{followed:,.0f} MB/s", "with none",
        f"{alone:,.0f} MB/s", f"{ratio:.2f}", f"{_AIM_SLOWER}", _met(ratio >= _AIM_SLOWER),
    )  # fmt: skip


def _acknowledged(folder: Path) -> Figure:
    (block,) = encoded_traffic(Traffic(1, body_size=_BODY))
    with _mastering(folder / "async") as (store, _):
        plain = _median_ms(store, block)
    with (
        _mastering(folder / "sync", broker_role="SYNC_MASTER", slave_timeout=60_000) as made,
        _following(made[1], folder / "slave", "--set=haAcknowledge=received"),
    ):
        store = made[0]
        while not store.slaves.is_available(store.published_end):
            time.sleep(0.01)
        synced = _median_ms(store, block)
    more = synced - plain
    return Figure(
        _SECTION, "SYNC_MASTER: median of a put", f"{synced:.2f} ms", "ASYNC_MASTER",
        f"{plain:.2f} ms", f"+{more:.2f} ms", f"+{_AIM_MS} ms", _met(more < _AIM_MS),
    )  # fmt: skip


def _config(**settings: Any) -> StoreConfig:
    return StoreConfig(**{"mapped_file_size_commit_log": _SEGMENT, **settings})


@contextmanager
def _mastering(path: Path, **settings: Any) -> Iterator[tuple[StoreWriter, Master]]:
    with StoreWriter.open(path, _config(ha_listen_port=0, **settings)) as store:
        master = Master(store)
        try:
            yield store, master
        finally:
            master.close()


@contextmanager
def _following(master: Master, path: Path, *settings: str) -> Iterator[None]:
    command = [sys.executable, "-m", "rmqstore_spark.cli", "follow", master.address, str(path)]
    command += [f"--set=mappedFileSizeCommitLog={_SEGMENT}", *settings]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdout=null, stderr=null) as process:
        try:
            yield
        finally:
            process.terminate()


def _block() -> U1:
    (block,) = encoded_traffic(Traffic(_BLOCK_ROWS, body_size=_BODY))
    return block


def _put(store: StoreWriter, block: U1, size: int) -> float:
    """Put blocks of so many bytes together; return megabytes a second."""
    begin = time.perf_counter()
    first = store.published_end
    while store.published_end - first < size:
        result = store.put(block.copy())
        if not result.ok:
            raise RuntimeError(result.remark)
    return (store.published_end - first) / (time.perf_counter() - begin) / 1e6


def _median_ms(store: StoreWriter, block: U1) -> float:
    times = []
    for _ in range(_PUTS):
        begin = time.perf_counter()
        if not store.put(block.copy()).ok:
            raise RuntimeError("a put was not acknowledged")
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def _disk_rate(path: Path) -> float:
    """Write and flush a file as large as the log; return megabytes a second."""
    data = os.urandom(4 << 20)
    begin = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(_BYTES // len(data)):
            file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
    took = time.perf_counter() - begin
    path.unlink()
    return _BYTES / took / 1e6


def _met(is_met: bool) -> str:
    return "yes" if is_met else "no"
