"""Figures that are quick to make are those of the moment; others are made in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.server.status import watched
from rmqstore_spark.server.status.watched import Sampling, WatchedStore
from rmqstore_spark.server.stores.sidecar import Sidecar, StorePlace
from tests.support.stores.storebuilder import StoreBuilder
from tests.support.waiting import eventually


class Counted:
    """A store whose figures count how often they are asked for, and wait to be let go.

    Attributes:
        asked: how often.
        may_end: whether an answer may come.
        error: what is raised instead of an answer.
    """

    name = "counted"

    def __init__(self) -> None:
        self.asked = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None

    def stats(self) -> dict[str, Any]:
        """Return the figures."""
        self.asked += 1
        number = self.asked
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error
        return {"number": number, "queues": {}}


@pytest.fixture
def store() -> Iterator[Counted]:
    found = Counted()
    yield found
    found.may_end.set()


def test_figures_are_asked_for_once_while_they_are_fresh(store: Counted) -> None:
    kept = WatchedStore(store, 60)  # type: ignore[arg-type]
    assert [kept.figures().stats["number"] for _ in range(3)] == [1, 1, 1]
    at_once = WatchedStore(store, 0)  # type: ignore[arg-type]
    assert [at_once.figures().stats["number"] for _ in range(3)] == [2, 3, 4]


def test_many_readers_at_once_ask_once(store: Counted) -> None:
    kept = WatchedStore(store, 60)  # type: ignore[arg-type]
    store.may_end.clear()
    found: list[int] = []
    readers = [
        threading.Thread(target=lambda: found.append(kept.figures().stats["number"]))
        for _ in range(8)
    ]
    for reader in readers:
        reader.start()
    eventually(lambda: store.asked == 1)
    store.may_end.set()
    for reader in readers:
        reader.join()
    assert found == [1] * 8


def test_nobody_waits_for_figures_that_take_long(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_SLOW_SECONDS", -1.0)
    slow = WatchedStore(store, 0)  # type: ignore[arg-type]
    assert slow.figures().stats["number"] == 1  # there were none yet
    store.may_end.clear()
    making = threading.Thread(target=slow.sample)
    making.start()
    eventually(lambda: store.asked == 2)
    assert slow.figures().stats["number"] == 1
    store.may_end.set()
    making.join()
    assert slow.figures().stats["number"] == 2


def test_figures_that_take_long_are_made_rarely_unless_somebody_looks(store: Counted) -> None:
    slow = WatchedStore(store, 0)  # type: ignore[arg-type]
    slow.sample()
    slow._took = 1e6
    assert not slow.is_due(0.0)
    slow._took = 0.01
    eventually(lambda: slow.is_due(0.0))
    slow._took, slow._sampled = 1.0, slow._sampled - 30  # 30 s ago
    assert not slow.is_due(0.0)
    slow.figures()
    assert slow.is_due(0.0)


def test_what_cannot_be_read_is_said_and_read_again_later(store: Counted) -> None:
    kept = WatchedStore(store, 0)  # type: ignore[arg-type]
    store.error = StoreAccessError("The folder may not be read.")
    assert kept.figures().stats == {"state": "FAILED", "failure": "The folder may not be read."}
    store.error = None
    assert kept.figures().stats["number"] == 2


def test_an_error_that_nobody_expects_ends_no_thread(
    store: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = ZeroDivisionError("x")
    kept = WatchedStore(store, 0)  # type: ignore[arg-type]
    sampling = Sampling([kept], 0.01)
    try:
        eventually(lambda: store.asked >= 3)
        store.error = None
        eventually(lambda: kept.look_back(lambda past: len(past.messages())) > 1)
    finally:
        sampling.close()
    assert "could not be taken" in caplog.text


def test_a_store_of_others_is_watched_like_that(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path / "store", segment_size=1 << 20, queue_entries=100):
        pass
    places = [StorePlace("a", str(tmp_path / "store"))]
    config = StoreConfig(listen_port=0)
    service = Sidecar(places, config, spares_page_cache=True, max_read_rate=None)
    figures = WatchedStore(service.stores[0], 0).figures()
    assert figures.stats["state"] == "READ_ONLY"
    assert figures.taken > 1.7e9
