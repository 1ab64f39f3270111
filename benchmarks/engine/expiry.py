"""The longest put while 100 segments expire, against the longest without expiry."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["expiry_figures", "measure_expiry"]

_SECTION: Final = "Puts while 100 segments of 16 MiB expire, ASYNC_FLUSH"
_SEGMENTS: Final = 100
_SEGMENT_BYTES: Final = 16 << 20
_ROWS: Final = 100
_PUTS: Final = 2000
_MOST_S: Final = 0.050


def expiry_figures(stores: Stores) -> Iterator[Figure]:
    """Measure puts of 100 messages of 1 KiB, one after the other."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    found = in_child("benchmarks.engine.expiry:measure_expiry", place=str(stores.folder))
    longest, before, count = found["during"], found["before"], found["puts"]
    yield Figure(
        _SECTION,
        "longest put",
        f"{longest * 1000:.1f} ms",
        "longest without expiry",
        f"{before * 1000:.1f} ms",
        f"{longest / before:.1f}",
        f"{_MOST_S * 1000:.0f} ms",
        "yes" if longest <= _MOST_S else "no",
        f"{count} puts in the {found['seconds']:.1f} s that the expiry took",
    )


def measure_expiry(place: str) -> dict[str, float]:
    """Fill a store, and put while its old segments expire.

    Returns:
        The longest put before and during expiry in seconds, and the seconds and puts of the latter.
    """
    (block,) = encoded_traffic(Traffic(messages=_ROWS, body_size=1024))
    with tempfile.TemporaryDirectory(dir=place) as folder:
        config = StoreConfig(
            mapped_file_size_commit_log=_SEGMENT_BYTES, disk_max_used_space_ratio=100,
            delete_commit_log_files_interval=0, delete_physic_files_batch_max=_SEGMENTS,
        )  # fmt: skip
        with StoreWriter.open(folder, config) as store:
            while store.published_end < (_SEGMENTS + 1) * _SEGMENT_BYTES:
                _put(store, block)
            store.flush()
            before = max(_put(store, block) for _ in range(_PUTS))
            limit = int(time.time() * 1000) + 1
            wanted = _SEGMENTS * _SEGMENT_BYTES
            done = threading.Event()
            began = time.monotonic()

            def expire() -> None:
                store.expire(limit)
                while store.stats()["commitLogMinOffset"] < wanted:
                    time.sleep(0.02)
                done.set()

            thread = threading.Thread(target=expire)
            thread.start()
            times = []
            while not done.is_set():
                times.append(_put(store, block))
                time.sleep(0.0005)  # so that the disk is not what is measured
            thread.join()
            seconds = time.monotonic() - began
    return {"before": before, "during": max(times), "seconds": seconds, "puts": len(times)}


def _put(store: StoreWriter, block: U1) -> float:
    data = block.copy()
    began = time.monotonic()
    result = store.put(data)
    taken = time.monotonic() - began
    if not result.ok:
        raise RuntimeError(result.remark)
    return taken
