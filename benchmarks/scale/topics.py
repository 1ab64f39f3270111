"""What topics cost that have no messages: to open, to plan a query of one, to create one more."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.means.child import in_child
from benchmarks.scale.opened import measure_opened
from benchmarks.scale.written import config_for, put_seconds
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.reader import Store
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["fill", "list_seconds", "measure_topics"]

_USED: Final = "orders"
_MESSAGES: Final = 20_000
_CREATED: Final = 5


def measure_topics(folder: Path, count: int) -> Mapping[str, float]:
    """Make a store with a number of topics, one of which has messages; measure its users."""
    store = str(folder / "store")
    found = dict(in_child(f"{__name__}:fill", store=store, count=count))
    found |= measure_opened(store, {"maxTopics": config_for(count).max_topics})
    found |= in_child(f"{__name__}:list_seconds", store=store)
    return found


def fill(store: str, count: int) -> dict[str, float]:
    """Make a store; return seconds of creating one more topic, and of a message to a new topic."""
    with StoreWriter.open(store, config_for(count)) as writer:
        writer.create_topics([_USED, *(f"topic-{number}" for number in range(count - 1))])
        put_seconds(writer, encoded_traffic(Traffic(_MESSAGES, topics={_USED: 8})))
        times = []
        for number in range(_CREATED):
            began = time.perf_counter()
            writer.create_topic(f"another-{number}")
            times.append(time.perf_counter() - began)
        return {"create one more": statistics.median(times)}


def list_seconds(store: str) -> dict[str, float]:
    """Seconds to open a store and list its topics with their settings."""
    times = []
    for _ in range(_CREATED):
        began = time.perf_counter()
        with Store.open(store) as opened:
            opened.topics()
        times.append(time.perf_counter() - began)
    return {"open to read, list topics": statistics.median(times)}
