"""What others do while large puts are on their way to the queues: they need not wait for them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.dispatch import dispatcher
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.files.durable import sync_folder
from tests.support.stores.storing import config, in_queues, messages, until
from tests.support.waiting import PATIENCE


def test_a_large_put_waits_for_queues_without_the_append_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_SMALL", 300)
    monkeypatch.setattr(dispatcher, "_MOST_LARGE", 1)
    large = [b"a" * 250, b"b" * 250]
    with StoreWriter.open(tmp_path / "s", config()) as store:
        begun, go = threading.Event(), threading.Event()
        real = store._store.queues.append

        def held(*args: Any) -> None:
            begun.set()
            assert go.wait(PATIENCE)
            real(*args)

        monkeypatch.setattr(store._store.queues, "append", held)
        results = [store.put_batch(messages(large))]
        assert begun.wait(PATIENCE)
        putting = threading.Thread(
            target=lambda: results.append(store.put_batch(messages(large[::-1])))
        )
        putting.start()
        try:
            until(lambda: store._workers.dispatcher._waiting == 1)
            assert store.put_batch(messages([b"small"])).ok
            assert store.put_batch(messages([b"other"], topic="U")).ok
            assert len(results) == 1
        finally:
            go.set()
            putting.join(PATIENCE)
        assert [result.ok for result in results] == [True, True]
    assert in_queues(tmp_path / "s") == {
        ("T", 0): [*large, b"small", *large[::-1]], ("U", 0): [b"other"],
    }  # fmt: skip


def test_a_put_that_needs_a_segment_creates_it_without_the_append_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "s", 65536
    with StoreWriter.open(path, config(mappedFileSizeCommitLog=size)) as store:
        assert store.put_batch(messages([b"first" + bytes(size // 2)])).ok
        begun, go = threading.Event(), threading.Event()

        def held(folder: str) -> None:
            begun.set()
            assert go.wait(PATIENCE)
            sync_folder(folder)

        monkeypatch.setattr("rmqstore_spark.engine.log.open_segments.sync_folder", held)
        large = [b"a" * (size // 3), b"b" * (size // 3)]
        results: list[Any] = []
        putting = threading.Thread(target=lambda: results.append(store.put_batch(messages(large))))
        putting.start()
        try:
            assert begun.wait(PATIENCE)
            assert store.put_batch(messages([b"small"])).ok
            assert store._store.log.made_until == size
            assert not results
        finally:
            go.set()
            putting.join(PATIENCE)
        assert results[0].ok
    assert in_queues(path)["T", 0][1:] == [b"small", *large]
    assert sorted(file.name for file in (path / "commitlog").iterdir()) == [
        f"{0:020}",
        f"{size:020}",
    ]


def test_no_segment_is_left_of_a_put_that_came_when_the_store_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "s", 65536
    store = StoreWriter.open(path, config(mappedFileSizeCommitLog=size))
    assert store.put_batch(messages([b"first" + bytes(size // 2)])).ok
    begun, go = threading.Event(), threading.Event()
    real = CommitLogWriter.reserve_until

    def held(log: CommitLogWriter, end: int) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        real(log, end)

    monkeypatch.setattr(CommitLogWriter, "reserve_until", held)
    results: list[Any] = []
    putting = threading.Thread(
        target=lambda: results.append(store.put_batch(messages([b"late" + bytes(size // 2)])))
    )
    putting.start()
    assert begun.wait(PATIENCE)
    store.close()
    go.set()
    putting.join(PATIENCE)
    assert not results[0].ok
    assert [file.name for file in (path / "commitlog").iterdir()] == [f"{0:020}"]
