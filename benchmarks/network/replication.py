"""Replication over loopback: a follower that catches up, and what followers cost puts."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.network.slaves import cpu_seconds, following, taking
from benchmarks.report.figures import Figure, met, ratio_cells, spread
from rmqstore_spark.engine import StoreConfig, StoreWriter
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
_SEGMENTS: Final = f"--set=mappedFileSizeCommitLog={_SEGMENT}"
_ROUNDS: Final = 5
_PUTS: Final = 300
_PACED_MBS: Final = 200
_PACED_SECONDS: Final = 4.0
_CORES: Final = os.cpu_count() or 1
_AIM_MBS: Final = 500.0
_AIM_OF_DISK: Final = 0.8
_AIM_MS: Final = 3.0
_AIM_SLOWER: Final = 0.75
_AIM_LONGER: Final = 1.25

_Joining = Callable[[Master, Path], AbstractContextManager[psutil.Popen]]


def replication_figures(stores: Stores) -> Iterator[Figure]:
    """Measure a follower that catches up, and puts while followers are connected."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stores.folder) as name:
        folder = Path(name)
        yield _catching_up(folder)
        yield from _two_slaves(folder)
        yield _at_a_rate(folder)
        yield from _acknowledged(folder)


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
        function = "benchmarks.network.replication:catch_up"
        took = in_child(function, master=master.address, path=copy, end=end)
    rate, disk = end / took / 1e6, _disk_rate(folder / "raw")
    aim = min(_AIM_MBS, _AIM_OF_DISK * disk)
    return Figure(
        _SECTION, "follower that catches up", f"{rate:,.0f} MB/s", "disk, sequential",
        f"{disk:,.0f} MB/s", f"{rate / disk:.2f}", f"{aim:,.0f} MB/s", met(rate >= aim),
    )  # fmt: skip


@dataclass(frozen=True)
class _Putting:
    """What puts reached, and what they and the slaves took.

    Attributes:
        rate: megabytes a second.
        master: seconds of CPU a gigabyte of this process, with all its threads.
        slaves: the same of each slave.
    """

    rate: float
    master: float
    slaves: Sequence[float]

    @property
    def bound(self) -> float:
        """Megabytes a second that the machine's cores have time for, with all that is done."""
        return 1000 * _CORES / (self.master + sum(self.slaves))

    def __str__(self) -> str:
        each = f", each slave {statistics.mean(self.slaves):.2f} s" if self.slaves else ""
        return f"the process that puts takes {self.master:.2f} s of CPU a GB{each}"


def _two_slaves(folder: Path) -> Iterator[Figure]:
    kinds: dict[str, list[_Joining]] = {
        "": [],
        "that only take the bytes and report": [lambda master, _: taking(master)] * 2,
        "that follow": [lambda master, path: following(master, path, _SEGMENTS)] * 2,
    }
    rounds = [  # in turns: the machine is not the same all the time
        {kind: _putting(folder / f"{number}{kind}", joining) for kind, joining in kinds.items()}
        for number in range(_ROUNDS)
    ]
    alone = _median([one[""] for one in rounds])
    for kind in filter(None, kinds):
        given = _median([one[kind] for one in rounds])
        ratios = [one[kind].rate / one[""].rate for one in rounds]
        yield Figure(
            _SECTION, f"puts with two slaves {kind}", f"{given.rate:,.0f} MB/s", "with none",
            f"{alone.rate:,.0f} MB/s", *ratio_cells(statistics.median(ratios), _AIM_SLOWER),
            f"{spread(ratios)} in {_ROUNDS} rounds; {given}: {_CORES} cores have time for "
            f"{given.bound:,.0f} MB/s; with none, {alone}: {alone.bound:,.0f} MB/s",
        )  # fmt: skip


def _median(puttings: Sequence[_Putting]) -> _Putting:
    """Return the median of each figure."""
    return _Putting(
        statistics.median(one.rate for one in puttings),
        statistics.median(one.master for one in puttings),
        [statistics.median(each) for each in zip(*(one.slaves for one in puttings), strict=True)],
    )


def _putting(folder: Path, joining: Sequence[_Joining]) -> _Putting:
    """Put as fast as possible, while slaves of these kinds are connected."""
    with _joined(folder, joining) as (store, slaves):
        processes = [psutil.Process(), *slaves]
        begin, first = [cpu_seconds(each) for each in processes], store.published_end
        rate = _put(store, _block(), _BYTES // 4)
        while any(store.slaves.behind_bytes()):
            time.sleep(0.01)
        gigabytes = (store.published_end - first) / 1e9
        took = [cpu_seconds(each) - before for each, before in zip(processes, begin, strict=True)]
    master, *others = [seconds / gigabytes for seconds in took]
    return _Putting(rate, master, others)


def _at_a_rate(folder: Path) -> Figure:
    """Puts at a rate that leaves time for followers: what those add to a put."""
    times = []
    for name, count in (("calm", 0), ("calm-followed", 2)):
        joining = [lambda master, path: following(master, path, _SEGMENTS)] * count
        with _joined(folder / name, joining) as (store, _):
            times.append(_paced_ms(store, _block()))
    (alone, alone_p99), (followed, followed_p99) = times
    ratio = followed / alone
    return Figure(
        _SECTION,
        f"{_PACED_MBS} MB/s are put, two followers connected: median of a put of "
        f"{_BLOCK_ROWS:,} messages",
        f"{followed:.2f} ms", "with none", f"{alone:.2f} ms", f"{ratio:.2f}",
        f"at most {_AIM_LONGER}", met(ratio <= _AIM_LONGER),
        f"p99 {followed_p99:.2f} ms; with none {alone_p99:.2f} ms",
    )  # fmt: skip


@contextmanager
def _joined(
    folder: Path, joining: Sequence[_Joining]
) -> Iterator[tuple[StoreWriter, list[psutil.Popen]]]:
    """A master with slaves that are connected."""
    with _mastering(folder / "master") as (store, master), ExitStack() as ends:
        slaves = [
            ends.enter_context(join(master, folder / f"slave{n}")) for n, join in enumerate(joining)
        ]
        while len(store.slaves) < len(slaves):
            time.sleep(0.01)
        yield store, slaves


def _paced_ms(store: StoreWriter, block: U1) -> tuple[float, float]:
    """Put blocks at `_PACED_MBS`; return the median and the 99th percentile of a put."""
    times, due = [], time.perf_counter()
    end = due + _PACED_SECONDS
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        times.append(_put_ms(store, block))
        due += len(block) / 1e6 / _PACED_MBS
    median, high = np.percentile(times, [50, 99])
    return float(median), float(high)


def _acknowledged(folder: Path) -> Iterator[Figure]:
    (block,) = encoded_traffic(Traffic(1, body_size=_BODY))
    with _mastering(folder / "async") as (store, _):
        plain = _median_ms(store, block)
    for acknowledge, what in (("received", "memory"), ("true", "disk")):
        path = folder / acknowledge
        with (
            _mastering(path / "master", broker_role="SYNC_MASTER", slave_timeout=60_000) as made,
            following(made[1], path / "slave", _SEGMENTS, f"--set=haAcknowledge={acknowledge}"),
        ):
            store = made[0]
            while not store.slaves.is_available(store.published_end):
                time.sleep(0.01)
            synced = _median_ms(store, block)
        more = synced - plain
        yield Figure(
            _SECTION, f"SYNC_MASTER, in a slave's {what}: median of a put", f"{synced:.2f} ms",
            "ASYNC_MASTER", f"{plain:.2f} ms", f"+{more:.2f} ms", f"+{_AIM_MS} ms",
            met(more < _AIM_MS),
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
    return statistics.median(_put_ms(store, block) for _ in range(_PUTS))


def _put_ms(store: StoreWriter, block: U1) -> float:
    begin = time.perf_counter()
    result = store.put(block.copy())
    if not result.ok:
        raise RuntimeError(f"a put was not acknowledged: {result.remark}")
    return 1000 * (time.perf_counter() - begin)


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
