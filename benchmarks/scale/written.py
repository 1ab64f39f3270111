"""Stores that are written to, by a process that ends as if it was killed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.means.child import in_child
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1

__all__ = ["config_for", "measure_killed", "open_and_close", "put_seconds"]

_PIECE: Final = 4 << 20
_SPARE_TOPICS: Final = 100
"""Of the system, and that are created while something is measured."""


def config_for(topics: int, queues: int = 8) -> StoreConfig:
    """Return a configuration for a number of topics, with so many queues each."""
    return StoreConfig(max_topics=topics + _SPARE_TOPICS, default_topic_queue_nums=queues)


def put_seconds(writer: StoreWriter, blocks: Iterable[U1]) -> float:
    """Put blocks, and wait until queues and index have them; return the seconds of that.

    What it takes to make the blocks does not count.
    """
    took = 0.0
    for block in blocks:
        began = time.perf_counter()
        result = writer.put(block)
        took += time.perf_counter() - began
        if not result.ok:
            raise SystemExit(f"a put failed: {result.status} {result.remark}")
    began = time.perf_counter()
    writer.commit_offsets("readers", {})  # which waits for the queues
    return took + time.perf_counter() - began


def measure_killed(fill: str, store: str, count: int) -> dict[str, float]:
    """Let a function fill a store that it does not close; open it, and close it then.

    Log and index are in the page cache by then: what it takes to get them there varies.

    Returns:
        What the function returns, and the seconds of opening and closing.
    """
    found: dict[str, float] = in_child(fill, store=store, count=count)
    if not Path(store, "abort").exists():
        raise SystemExit("the store was closed")
    for path in (*Path(store, "commitlog").iterdir(), *Path(store, "index").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass
    found |= in_child(f"{__name__}:open_and_close", store=store)
    return found


def open_and_close(store: str) -> Mapping[str, float]:
    """Return the seconds of opening and of closing a store that was not closed."""
    began = time.perf_counter()
    writer = StoreWriter.open(store)
    opened = time.perf_counter()
    writer.close()
    return {"open, killed": opened - began, "close": time.perf_counter() - opened}
