"""Delivery while a batch is committed: only levels whose next message is for its queues wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from tests.support.messages.batches import bodies, commit_batch, rows_block
from tests.support.messages.stopped import stopped_commit
from tests.support.processes.delaying import delayed, delayed_config, delivered, rows_of
from tests.support.stores.storing import Clock, until

HOUR = 3_600_000


def test_levels_pass_one_that_waits_for_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of that one, those before the first that waits are delivered. Its order stays."""
    path, clock = tmp_path / "store", Clock()
    config = delayed_config(mappedFileSizeCommitLog=1 << 20, osPageCacheBusyTimeOutMills=60_000)
    with StoreWriter.open(path, config, clock=clock) as store:
        assert store.put(rows_block(bodies("first", 8))).ok

        def put(names: list[bytes], topic: str, level: int) -> None:
            assert store.put_batch(delayed(names, level, topic=topic)).ok

        put([b"1", b"2"], "others", 3)
        put([b"3"], "orders", 3)
        put([b"4"], "others", 3)
        put([b"5", b"6"], "others", 2)
        with stopped_commit(monkeypatch, lambda: commit_batch(store, 0)) as go:
            clock.now += HOUR
            until(lambda: store.stats()["delayedDelivered"] == 4)
            assert store.stats()["delayedWaiting"] == {"1": 0, "2": 0, "3": 2}
            put([b"7"], "others", 1)
            clock.now += HOUR
            until(lambda: store.stats()["delayedDelivered"] == 5)
            go.set()
            delivered(store, 6 + 1)
    rows = {topic: [row["body"] for row in rows_of(path, topic)] for topic in ("others", "orders")}
    assert sorted(rows["others"]) == [b"1", b"2", b"4", b"5", b"6", b"7"]
    assert rows["others"].index(b"1") < rows["others"].index(b"2") < rows["others"].index(b"4")
    assert rows["others"][-1] == b"4"
    assert rows["orders"].count(b"3") == 1
