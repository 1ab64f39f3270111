"""How long a store takes to open: what a start must not depend on is how much is in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.engine.recovery.queues_and_index import RecoverySettings
from rmqstore_spark.engine.recovery.recover import Recovered, recover
from tests.support.stores.recovering import close_cleanly
from tests.support.stores.sparse import GIB, sparse_store, wide_store


def reads() -> tuple[int, int]:
    """Return how many bytes this thread has read so far, and in how many calls."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]), int(counts["syscr"])


def opened(store: Path) -> tuple[Recovered, tuple[int, int]]:
    """Recover a store; returns how many bytes that read, and in how many calls."""
    before = reads()
    found = recover(str(store), RecoverySettings(lambda: time.time_ns() // 1_000_000))
    after = reads()
    close_cleanly(store, found)
    found.queues.close()
    if found.indexes is not None:
        found.indexes.close()
    return found, (after[0] - before[0], after[1] - before[1])


def test_what_is_not_written_is_not_read(tmp_path: Path) -> None:
    store = wide_store(tmp_path / "s", 16)
    (segment,) = (store / "commitlog").iterdir()
    assert segment.stat().st_size == GIB
    with StoreLock(str(store)):
        opened(store)  # makes the index
        found, (read, _) = opened(store)
    assert found.summary.clean
    assert found.log_end < 1 << 20
    assert read < 64 << 20


@pytest.mark.slow
def test_a_clean_store_of_100_gb_opens_as_one_of_10_gb(tmp_path: Path) -> None:
    topics = {f"topic-{number}": 16 for number in range(20)}
    read = {}
    for segments in (10, 100):
        store = sparse_store(tmp_path / str(segments), segments, topics)
        assert sum(p.stat().st_size for p in (store / "commitlog").iterdir()) == segments * GIB
        with StoreLock(str(store)):
            first, _ = opened(store)  # makes the index, of which there is none
            assert first.summary.indexed_keys > 400_000
            found, read[segments] = opened(store)
        assert found.summary.clean
        assert (found.summary.redispatched, found.summary.indexed_keys) == (0, 0)
        assert found.log_end > (segments - 1) * GIB
        assert sum(len(ids) for ids in found.queues.ranges().values()) == 320
    (few_bytes, few_calls), (many_bytes, many_calls) = read[10], read[100]
    assert 0 < many_bytes < few_bytes * 1.01
    # The end of each queue is bisected: ten times as many entries take four more steps.
    assert 0 < many_calls - few_calls <= 320 * 4 + 20
