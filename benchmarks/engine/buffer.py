"""What a private buffer before the page cache would save a put (a broker's TransientStorePool).

A put that is copied into such a buffer skips the write to the file, until something commits the
buffer. So at most the difference between that write and the copy is saved, out of the whole put.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.engine.writer import new_store
from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.engine import StoreConfig
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["buffer_figures", "measure_buffer"]

_SECTION: Final = "A private buffer before the page cache, ASYNC_FLUSH, bodies of 1 KiB"
_MESSAGES: Final = (1, 64, 4096)
_BODY: Final = 1024
_ROOM: Final = 256 << 20
_BYTES: Final = 128 << 20
_MOST_PUTS: Final = 4000


def buffer_figures(stores: Stores) -> Iterator[Figure]:
    """Measure puts of one and of many messages, and the parts that a buffer would change."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    for count in _MESSAGES:
        put, write, copy = in_child(
            "benchmarks.engine.buffer:measure_buffer", place=str(stores.folder), count=count
        )
        yield Figure(
            _SECTION,
            f"{count} message{'s' if count > 1 else ''} a put",
            f"{put * 1e6:,.0f} us",
            "write to the page cache, less the copy into a buffer",
            f"{(write - copy) * 1e6:,.0f} us",
            f"{(write - copy) / put:.2f}",
            "",
            "",
            f"the write takes {write * 1e6:,.0f} us, the copy {copy * 1e6:,.0f} us",
        )


def measure_buffer(place: str, count: int) -> tuple[float, float, float]:
    """Return the median seconds of a put of some messages, of their write, and of their copy."""
    (block,) = encoded_traffic(Traffic(count, body_size=_BODY))
    puts = min(_MOST_PUTS, _BYTES // len(block))
    with new_store(Path(place), StoreConfig(), 1) as store:
        put = _median(puts, lambda _: store.put(block.copy()).status)
    with tempfile.NamedTemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, _ROOM)
        write = _median(puts, lambda at: os.pwritev(file.fileno(), [block.data], at * len(block)))
    buffer = np.ones(_ROOM, np.uint8)  # its pages are there, as those of a locked buffer

    def keep(at: int) -> None:
        buffer[at * len(block) : (at + 1) * len(block)] = block

    copy = _median(puts, keep)
    return put, write, copy


def _median(count: int, work: Callable[[int], object]) -> float:
    times = []
    for number in range(count):
        begin = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
