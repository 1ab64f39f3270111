from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.lock import StoreGuard
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.claims import Claims
from tests.fault.rounds.life import SMALL, live


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
        report = verify(reader)
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


def test_it_stays_after_a_kill_until_a_recovery_whose_progress_ends_at_its_total(
    tmp_path: Path,
) -> None:
    """Of a log that was never flushed, as far as a checkpoint knows: all of it is walked."""
    path, told = tmp_path / "store", list[tuple[str, int, int]]()
    assert live(path, Claims(), 1, operations=20, failpoint="put.after_write:9").code == -9
    guard = path / "commitlog" / GUARD_NAME
    assert guard.exists()
    (path / "checkpoint").unlink(missing_ok=True)
    config = StoreConfig().with_overrides(dict(pair.split("=", 1) for pair in SMALL))
    with StoreWriter.open(path, config, progress=lambda *now: told.append(now)) as store:
        assert guard.exists()
        assert store.recovery.walked_bytes > 0
    assert not guard.exists()
    assert told
    for what in {name for name, _, _ in told}:
        done = [(at, total) for name, at, total in told if name == what]
        assert done == sorted(done), what
        assert len({total for _, total in done}) == 1, what
        assert 0 < done[-1][0] <= done[-1][1], what
        # The log ends before the end of its last file.
        assert what == "log" or done[-1][0] == done[-1][1], what
