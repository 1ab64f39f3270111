from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer.guard import StoreGuard


@pytest.fixture
def guarded(golden: Callable[[str], Path], tmp_path: Path) -> tuple[Path, StoreGuard]:
    store = Path(shutil.copytree(golden("tiny") / "store", tmp_path / "store"))
    guard = StoreGuard(str(store / "commitlog"))
    guard.place()
    return store, guard


def test_it_has_another_size_than_a_segment_and_says_what_it_is(
    guarded: tuple[Path, StoreGuard],
) -> None:
    store, guard = guarded
    text = Path(guard.path).read_text()
    assert 0 < len(text) < 4096  # the segments of this store have 4 KiB
    assert "rmqstore recover" in text
    assert Path(guard.path).parent == store / "commitlog"


def test_readers_and_verify_know_it(
    guarded: tuple[Path, StoreGuard], caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = guarded
    (store / "rmqstore" / "cut").mkdir(parents=True)
    (store / "rmqstore" / "state.json").write_text("{}")
    caplog.set_level(logging.INFO)
    with Store.open(store) as reader:
        assert reader.topics()
        assert len(reader.queues())
        report = reader.verify()
    assert report.ok
    assert not report.problems
    assert not caplog.records


def test_placing_it_again_leaves_it_as_it_is(guarded: tuple[Path, StoreGuard]) -> None:
    _, guard = guarded
    before = Path(guard.path).stat()
    guard.place()
    assert Path(guard.path).stat().st_mtime_ns == before.st_mtime_ns


def test_removing_it_leaves_nothing_behind(guarded: tuple[Path, StoreGuard]) -> None:
    store, guard = guarded
    Path(f"{guard.path}.tmp").write_text("of a kill")
    guard.remove()
    assert all(path.name.isdigit() for path in (store / "commitlog").iterdir())
    guard.remove()
    assert not guard.is_placed
