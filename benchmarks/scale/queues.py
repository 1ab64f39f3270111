"""What queues cost: to begin, to append to, to open, to plan, to follow, to hold in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.scale.opened import measure_opened
from benchmarks.scale.written import config_for, measure_killed, put_seconds
from rmqstore_spark.engine import StoreWriter
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

__all__ = ["fill", "measure_queues"]

_OF_A_TOPIC: Final = 10
_MESSAGES: Final = 200_000
"""That are appended, to all queues in turn."""


def measure_queues(folder: Path, count: int) -> Mapping[str, float]:
    """Make a store with a number of queues, and measure what its users do."""
    store = str(folder / "store")
    found = measure_killed(f"{__name__}:fill", store, count)
    return found | measure_opened(store, {"maxTopics": config_for(count).max_topics})


def fill(store: str, count: int) -> dict[str, float]:
    """Make a store that is not closed; return seconds of a queue's first message, and of others."""
    topics = _topics(count)
    writer = StoreWriter.open(store, config_for(len(topics), min(count, _OF_A_TOPIC)))
    writer.create_topics(list(topics))
    first = put_seconds(writer, encoded_traffic(Traffic(count, topics=topics)))
    writer.flush()
    blocks = encoded_traffic(Traffic(_MESSAGES, topics=topics))
    before = time.process_time()
    took = put_seconds(writer, blocks)
    spent = time.process_time() - before
    return {
        "the first message of a queue": first / count,
        "a message that is appended": took / _MESSAGES,
        "a message that is appended: CPU": spent / _MESSAGES,
    }


def _topics(count: int) -> dict[str, int]:
    """Topics with a number of queues together."""
    queues = min(count, _OF_A_TOPIC)
    return dict.fromkeys((f"topic-{number}" for number in range(count // queues)), queues)
