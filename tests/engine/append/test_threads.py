"""The threads of a store: what goes wrong in one shows in the store's state, without a put."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from tests.support.stores.storing import config, in_queues, messages, until

pytestmark = pytest.mark.fault


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("something nobody thought of")


def test_dispatching_that_fails_shows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        monkeypatch.setattr(store._store.queues, "append", broken)
        assert store.put_batch(messages([b"a"])).ok
        until(lambda: store.state == "FAILED")
        assert "something nobody thought of" in caplog.text
        refused = store.put_batch(messages([b"b"]))
        assert (str(refused.status), refused.is_open) == ("SERVICE_NOT_AVAILABLE", False)
    StoreWriter.open(tmp_path / "s", config()).close()
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a"]}


def test_flushing_that_fails_in_any_way_shows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(flushIntervalCommitLog=1)
    with StoreWriter.open(tmp_path / "s", settings) as store:
        monkeypatch.setattr(store._store.log, "flush", broken)
        assert store.put_batch(messages([b"a"])).ok
        until(lambda: store.state == "FAILED")
        assert "something nobody thought of" in caplog.text


def test_a_segment_that_is_not_made_ahead_for_any_reason_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The put that needed it waited for ever, and with it all others."""
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok
        monkeypatch.setattr(os, "posix_fallocate", broken)
        assert store.put_batch(messages([b"a" * 2500])).ok
        until(lambda: "created ahead of time: something nobody thought of" in caplog.text)
        monkeypatch.undo()
        assert store.put_batch(messages([b"b" * 2500])).ok
