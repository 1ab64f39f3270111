"""Stores that are written to: blocks that are put, and a process that is killed."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping
from typing import Final

from benchmarks.means.child import in_child
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["config_for", "killed_open_seconds", "leave", "put_seconds"]

_POLL: Final = 0.0005
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
    while writer.stats()["dispatchBehindBytes"]:
        time.sleep(_POLL)
    return took + time.perf_counter() - began


def killed_open_seconds(store: str, topics: Mapping[str, int], messages: int) -> float:
    """Put messages in a process that ends without closing the store; return seconds of opening."""
    spawned = multiprocessing.get_context("spawn")
    process = spawned.Process(target=leave, args=(store, dict(topics), messages))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("the process that puts has failed")
    return float(in_child("benchmarks.engine.recovery:measure_open", store=store))


def leave(store: str, topics: Mapping[str, int], messages: int) -> None:
    """Put messages, and end without closing the store."""
    writer = StoreWriter.open(store, config_for(len(topics)))
    put_seconds(writer, encoded_traffic(Traffic(messages, topics=topics)))
    os._exit(0)
