"""Transactions while a batch is committed: the lock that all of them need is not held for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.spans import U1
from tests.support.messages.batches import bodies, commit_batch, rows_block, scanned
from tests.support.messages.stopped import stopped_commit
from tests.support.processes.halving import as_block, ends, half_config, halves, put_halves
from tests.support.stores.storing import until

SEGMENT: Final = 1 << 20


def test_of_transactions_that_end_together_only_those_for_its_queues_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, answers = tmp_path / "store", list[list[str]]()
    config = half_config(mappedFileSizeCommitLog=SEGMENT, osPageCacheBusyTimeOutMills=60_000)
    with StoreWriter.open(path, config) as store:
        assert store.put(rows_block(bodies("first", 8))).ok
        held = put_halves(store, [b"held 1", b"held 2"], topic="orders")
        free = put_halves(store, [b"free 1", b"free 2"], topic="others")
        mixed = [held[0], free[0], held[1], free[1], held[0]]

        def end() -> None:
            answers.append(ends(store, mixed, is_commit=True))

        with stopped_commit(monkeypatch, lambda: commit_batch(store, 0)) as go:
            ending = threading.Thread(target=end)
            ending.start()
            until(lambda: store.stats()["transactionsCommitted"] == 2)
            assert ends(store, held[1:], is_commit=False) == ["ROLLED_BACK"]
            assert ending.is_alive()
            go.set()
            ending.join(60)
        assert answers == [["COMMITTED", "COMMITTED", "ENDED_BEFORE", "COMMITTED", "ENDED_BEFORE"]]
    rows = scanned(path)
    places = {body: place for place, body in enumerate(rows)}  # the last: the first is the half's
    assert places[b"free 2"] < places[b"b0/0/0:"] < places[b"held 1"]


def test_an_end_waits_no_longer_than_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = half_config(mappedFileSizeCommitLog=SEGMENT, osPageCacheBusyTimeOutMills=50)
    with StoreWriter.open(tmp_path / "store", config) as store:
        assert store.put(rows_block(bodies("first", 8))).ok
        held = put_halves(store, [b"held"], topic="orders")
        with (
            stopped_commit(monkeypatch, lambda: commit_batch(store, 0)),
            pytest.raises(RefusedError, match="50 ms"),
        ):
            ends(store, held, is_commit=True)
        assert ends(store, held, is_commit=True) == ["COMMITTED"]


def test_half_messages_without_room_before_it_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = half_config(mappedFileSizeCommitLog=SEGMENT, osPageCacheBusyTimeOutMills=60_000)
    done = list[bool]()
    with StoreWriter.open(tmp_path / "store", config) as store:
        large: U1 = as_block(halves([b"x" * 1000 + b"%d" % n for n in range(200)]))
        free = put_halves(store, [b"free"], topic="others")
        with stopped_commit(monkeypatch, lambda: commit_batch(store, 0)) as go:
            putting = threading.Thread(
                target=lambda: done.append(store.transactions.puts.put(large).ok)
            )
            putting.start()
            assert ends(store, free, is_commit=True) == ["COMMITTED"]
            assert not done
            go.set()
            putting.join(60)
    assert done == [True]
