"""Delayed messages: how late many that are due at once arrive, and what waiting ones cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import record_columns
from tests.support.processes.delaying import delayed

__all__ = ["delay_figures", "measure_due", "measure_waiting"]

_SECTION: Final = "Delayed messages of 100 B, ASYNC_FLUSH"
_BLOCK: Final = 1000
_BODIES: Final = tuple(b"%0100d" % number for number in range(_BLOCK))
_DUE: Final = 100_000
_DELAY_S: Final = 5
_MOST_LATE_S: Final = 2.0
_WAITING: Final = 10_000_000
_MOST_GROWTH: Final = 64 << 20


def delay_figures(stores: Stores) -> Iterator[Figure]:
    """Measure in processes of their own."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    due = in_child("benchmarks.engine.delays:measure_due", place=str(stores.folder))
    yield Figure(
        _SECTION,
        f"{_DUE:,} that are due within {due['put']:.1f} s: the last is delivered",
        f"{due['late']:.2f} s late",
        aim=f"{_MOST_LATE_S:.0f} s",
        met="yes" if due["late"] <= _MOST_LATE_S else "no",
    )
    waiting = in_child("benchmarks.engine.delays:measure_waiting", place=str(stores.folder))
    growth = waiting["after"] - waiting["before"]
    yield Figure(
        _SECTION,
        f"memory of the process while {_WAITING:,} wait",
        f"{waiting['after'] / 1e6:.0f} MB",
        f"while {_BLOCK:,} wait",
        f"{waiting['before'] / 1e6:.0f} MB",
        f"{waiting['after'] / waiting['before']:.2f}",
        f"at most {_MOST_GROWTH / 1e6:.0f} MB more",
        "yes" if growth <= _MOST_GROWTH else "no",
    )


def measure_due(place: str) -> dict[str, float]:
    """Put messages that are due at almost the same time, and wait until all are delivered.

    Returns:
        The seconds that the puts took, and those from the time at which the last message was due
        until it was delivered.
    """
    with tempfile.TemporaryDirectory(dir=place) as folder, _opened(folder) as store:
        block = _block(1)
        began = time.monotonic()
        for _ in range(_DUE // _BLOCK):
            _put(store, block)
        last = time.monotonic()
        while store.stats()["delayedDelivered"] < _DUE:
            time.sleep(0.005)
        return {"put": last - began, "late": time.monotonic() - last - _DELAY_S}


def measure_waiting(place: str) -> dict[str, float]:
    """Put messages that stay, and look at the memory of the process that is not of files.

    Returns:
        Bytes after the first put, and after the last and everything about it is done.
    """
    with tempfile.TemporaryDirectory(dir=place) as folder, _opened(folder) as store:
        block = _block(2)
        _put(store, block)
        store.flush()
        before = _memory()
        for _ in range(_WAITING // _BLOCK - 1):
            _put(store, block)
        store.flush()
        return {"before": before, "after": _memory()}


def _opened(folder: str) -> StoreWriter:
    config = StoreConfig(
        message_delay_level=f"{_DELAY_S}s 10h", disk_max_used_space_ratio=100, file_reserved_time=0
    )
    return StoreWriter.open(folder, config)


def _put(store: StoreWriter, block: U1) -> None:
    result = store.put(block.copy())
    if result.rows != _BLOCK:
        raise SystemExit(f"a put failed: {result.status}: {result.remark}")


def _block(level: int) -> U1:
    columns = record_columns(delayed(_BODIES, level), int(time.time() * 1000), "127.0.0.1:0")
    return np.array(encode_records(columns).data)


def _memory() -> int:
    """Bytes of this process that belong to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise SystemExit("the system does not tell how much memory the process has")
