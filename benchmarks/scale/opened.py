"""What a store that is closed costs its users: each thing in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from benchmarks.means.child import in_child
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.stream.followed import FollowedSources
from rmqstore_spark.embedding import EmbeddedStore, Setting

__all__ = ["best", "look_seconds", "measure_opened", "most_memory", "process_memory"]

_SHORT: Final = 1.0
"""Seconds: what takes less is measured again. The first time may read what is not cached."""
_LOOKS: Final = 100
_READY_SECONDS: Final = 300.0


def measure_opened(store: str, settings: Mapping[str, int] | None = None) -> dict[str, float]:
    """Open a closed store, plan a query, follow it, serve it; return seconds, and bytes.

    Args:
        store: its path, without files of its own making yet.
        settings: keys of the store's configuration for the store process.
    """
    open_seconds = "benchmarks.engine.recovery:measure_open"
    found = {
        "open, closed cleanly": best(open_seconds, store=store),
        "plan of a query": best("benchmarks.spark.planning:measure", store=store),
    }
    found |= in_child(f"{__name__}:look_seconds", store=store)
    found["store process"] = process_memory(store, settings or {})
    return found


def best(function: str, store: str) -> float:
    """Return the least of what a function of a store returns, in a process each time."""
    found = [in_child(function, store=store)]
    if found[0] < _SHORT:
        found.append(in_child(function, store=store))
    return float(min(found))


def look_seconds(store: str) -> Mapping[str, float]:
    """Seconds of a stream's looks where nothing is new: at all queues, and at the log alone."""
    sources = FollowedSources(parse_options({"path": store}, streaming=True), time.monotonic)
    watched = [source.watched for source in sources.opened]
    for each in watched:
        each.check()
    began = time.perf_counter()
    for each in watched:
        each.check()
    every = time.perf_counter() - began
    times = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        sources.look()
        times.append(time.perf_counter() - began)
    sources.close()
    return {
        "a stream looks at all queues": every,
        "a stream looks at the log": statistics.median(times),
    }


def process_memory(store: str, settings: Mapping[str, int]) -> float:
    """Bytes of a store process that has just opened a store."""
    more: dict[str, Setting] = {"clients": "all", "vipListenPort": 0, **settings}
    process = EmbeddedStore(store, ready_seconds=_READY_SECONDS, settings=more)
    with process:
        return float(psutil.Process(process.pid).memory_info().rss)


def most_memory() -> int:
    """Bytes of the greatest resident set that this process has had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10
