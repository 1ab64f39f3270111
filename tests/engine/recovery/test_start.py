"""How long a store takes to open: what a start must not depend on is how much is in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.engine.recovery.recover import Recovered, recover
from tests.support.recovering import close_cleanly
from tests.support.sparse import GIB, sparse_store


def opened(store: Path) -> tuple[Recovered, float]:
    """Recover a store; returns how many seconds that took."""
    began = time.monotonic()
    found = recover(str(store), clock=lambda: time.time_ns() // 1_000_000)
    took = time.monotonic() - began
    found.queues.close()
    if found.indexes is not None:
        found.indexes.close()
    return found, took


@pytest.mark.slow
def test_a_clean_store_of_100_gb_opens_in_two_seconds(tmp_path: Path) -> None:
    topics = {f"topic-{number}": 16 for number in range(20)}
    store = sparse_store(tmp_path / "s", 100, topics)
    assert sum(p.stat().st_size for p in (store / "commitlog").iterdir()) == 100 * GIB
    with StoreLock(str(store)):
        first, _ = opened(store)  # makes the index, of which there is none
        assert first.summary.indexed_keys > 1_000_000
        close_cleanly(store, first)
        found, took = opened(store)
        close_cleanly(store, found)
        for _ in range(4):  # others may have had the processors
            if took >= 2:
                found, took = opened(store)
                close_cleanly(store, found)
    assert found.summary.clean
    assert (found.summary.redispatched, found.summary.indexed_keys) == (0, 0)
    assert found.log_end > 99 * GIB
    assert sum(len(ids) for ids in found.queues.ranges().values()) == 320
    assert took < 2
