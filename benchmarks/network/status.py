"""What the status pages cost: an idle process of 10,000 queues, and how fast its pages answer.

`python -m benchmarks.network.status` measures this alone, in two to three minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure, met, print_table
from rmqstore_spark.engine import StoreConfig, StoreWriter
from tests.support.messages.blocks import encoded
from tests.support.processes.serving import StoreProcess

__all__ = ["status_figures"]

_SECTION: Final = "Status pages"
_TOPICS, _QUEUES = 1250, 8
_IDLE_SECONDS: Final = 20.0
_REFRESH_SECONDS: Final = 10.0
_MOST_CPU: Final = 0.01
_MOST_SECONDS: Final = 1.0
_TIMES: Final = 5
_PORT: Final = "--set=metricsPromExporterPort=0"
_ON: Final = "--set=statusPageEnable=true"
_PAGES: Final = {
    "/status": "overview",
    "/status/topics?order=rate": "topics by rate",
    "/status/topics?page=13": "last page of topics",
    "/status/groups": "groups",
    "/status/messages?topic=topic-0777": "messages of a topic",
}
_SMALL: Final = StoreConfig().with_overrides({"mappedFileSizeConsumeQueue": "6000"})


def status_figures(stores: Stores) -> Iterator[Figure]:
    """A store with 10,000 queues that have a message each, and 100 groups of ten topics."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=stores.folder) as name:
        path = Path(name) / "store"
        _fill(path)
        given = ("--set=mappedFileSizeConsumeQueue=6000", _PORT)
        with StoreProcess(path, Path(name), *given) as without:
            without.ready()
            plain = _cores(without, None)
            without.process.terminate()
            without.wait()
        with StoreProcess(path, Path(name), *given, _ON) as process:
            yield from _of_writer(process, plain)
            process.process.terminate()
            process.wait()
        with StoreProcess(path, Path(name), "--read-only", _PORT, _ON) as process:
            yield from _of_sidecar(process)


def _of_writer(process: StoreProcess, plain: float) -> Iterator[Figure]:
    address = process.ready()["metrics"]
    _seconds(f"http://{address}/status")
    for what, page in (
        ("no page open", None),
        ("a page of topics open, refreshed every 10 s", f"http://{address}/status/topics"),
    ):
        cores = _cores(process, page)
        yield Figure(
            _SECTION, f"idle process, {_TOPICS * _QUEUES:,} queues, {what}",
            f"{cores:.2%} of a core", "without status pages", f"{plain:.2%}",
            aim=f"under {_MOST_CPU:.0%} more", met=met(cores - plain < _MOST_CPU),
        )  # fmt: skip
    for path, what in _PAGES.items():
        yield _of_page(f"http://{address}{path}", f"{what}, {_TOPICS * _QUEUES:,} queues")


def _of_sidecar(process: StoreProcess) -> Iterator[Figure]:
    address = process.ready()["metrics"]
    _seconds(f"http://{address}/status")
    cores = _cores(process, None)
    yield Figure(
        _SECTION, f"idle sidecar, {_TOPICS * _QUEUES:,} queues, between two reads of its figures",
        f"{cores:.2%} of a core", aim=f"under {_MOST_CPU:.0%}", met=met(cores < _MOST_CPU),
    )  # fmt: skip
    for path in ("/status", "/status/topics?page=13"):
        yield _of_page(f"http://{address}{path}", f"{_PAGES[path]} of a sidecar")


def _of_page(address: str, what: str) -> Figure:
    times = []
    for _ in range(_TIMES):
        times.append(_seconds(address))
        time.sleep(1.1)  # the figures of the last page are not used again
    worst = max(times)
    return Figure(
        _SECTION, what, f"{statistics.median(times) * 1000:.0f} ms", "slowest",
        f"{worst * 1000:.0f} ms", aim=f"{_MOST_SECONDS:g} s", met=met(worst < _MOST_SECONDS),
    )  # fmt: skip


def _seconds(address: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - of this machine
        answer.read()
    return time.monotonic() - began


def _cores(process: StoreProcess, page: str | None) -> float:
    """Return how much of a core a process takes, with a page open or without one."""
    watched = psutil.Process(process.process.pid)
    time.sleep(2)  # what its start left to do
    before, began = _spent(watched), time.monotonic()
    while time.monotonic() - began < _IDLE_SECONDS:
        if page is not None:
            _seconds(page)
        time.sleep(_REFRESH_SECONDS)
    return (_spent(watched) - before) / (time.monotonic() - began)


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _fill(path: Path) -> None:
    names = [f"topic-{number:04}" for number in range(_TOPICS)]
    with StoreWriter.open(path, _SMALL) as store:
        store.create_topics(names)
        for part in range(0, _TOPICS, 250):
            assert store.put(_block(names[part : part + 250])).ok  # noqa: S101 - a benchmark's
        for number in range(100):
            read = names[number * 10 : number * 10 + 10]
            store.commit_offsets(
                f"group-{number:03}", {topic: dict.fromkeys(range(_QUEUES), 0) for topic in read}
            )


def _block(names: Sequence[str]) -> np.ndarray:
    count = len(names) * _QUEUES
    return encoded(
        pa.record_batch(
            {
                "topic": pa.array(np.repeat(names, _QUEUES)),
                "queueId": pa.array(np.tile(np.arange(_QUEUES, dtype=np.int32), len(names))),
                "body": pa.array([b'{"amount": 42}'] * count, pa.binary()),
                "properties": pa.array([b""] * count, pa.binary()),
                "bornTimestamp": pa.array([1_700_000_000_000] * count),
            }
        )
    )


if __name__ == "__main__":
    print_table(list(status_figures(Stores(Path(".bench")))))
