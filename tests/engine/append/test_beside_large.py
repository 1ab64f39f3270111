"""What others do while large puts are on their way to the queues: they need not wait for them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.dispatch import dispatcher
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
