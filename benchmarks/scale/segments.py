"""What segments of a log cost: to open, to list, to plan, to look up, to expire.

Each segment is 1 GiB long, and all but its first records are a hole. Files of queues and index are
as many as messages of 1 KiB would fill, and hold fewer entries each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.scale.opened import measure_opened
from rmqstore_spark.engine import StoreConfig, StoreWriter
from tests.support.messages.traffic import FIRST_TIME
from tests.support.stores.sparse import GIB, sparse_store

__all__ = ["expire_seconds", "measure_segments"]

_TOPIC: Final = "orders"
_QUEUES: Final = 8
_ROWS: Final = 24
_QUEUE_ENTRIES: Final = 7
"""Of a queue's file: some three files for each segment. The last file of no queue is full."""
_INDEX: Final = (100, 2 * 10 * _ROWS)
"""Slots and entries of an index file: one for ten segments, each of whose messages has two keys."""
_EXPIRED: Final = 5
_HOUR_MS: Final = 3_600_000
_POLL: Final = 0.001


def measure_segments(folder: Path, count: int) -> Mapping[str, float]:
    """Make a log with a number of segments, and measure its users."""
    path = sparse_store(
        folder / "store", count, {_TOPIC: _QUEUES}, rows=_ROWS, last_rows=_ROWS,
        queue_entries=_QUEUE_ENTRIES, index=_INDEX,
    )  # fmt: skip
    store = str(path)
    in_child("benchmarks.engine.recovery:measure_open", store=store)  # makes what is missing
    found = dict(in_child("benchmarks.scale.lookups:find_seconds", store=store, topic=_TOPIC))
    settings = {"maxHashSlotNum": _INDEX[0], "maxIndexNum": _INDEX[1]}
    found |= measure_opened(store, settings)
    found |= in_child(f"{__name__}:expire_seconds", store=store)
    return found


def expire_seconds(store: str) -> dict[str, float]:
    """Seconds to list what is due, and to remove one of the oldest segments with all of it."""
    config = StoreConfig(
        file_reserved_time=0, delete_commit_log_files_interval=0,
        max_hash_slot_num=_INDEX[0], max_index_num=_INDEX[1],
    )  # fmt: skip
    due = FIRST_TIME + _EXPIRED * _HOUR_MS + 1
    with StoreWriter.open(store, config) as writer:
        began = time.perf_counter()
        listed = len(writer.expirable(due).segments)
        looked = time.perf_counter() - began
        began = time.perf_counter()
        writer.expire(due)
        while writer.expirable(1).is_working:
            time.sleep(_POLL)
        took = time.perf_counter() - began
        if listed != _EXPIRED or writer.stats()["commitLogMinOffset"] != _EXPIRED * GIB:
            raise SystemExit(f"{listed} segments were due, and not all of them were removed")
    return {"see which segments are due": looked, "expire a segment": took / _EXPIRED}
