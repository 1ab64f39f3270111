"""Files in `commitlog/` that do not belong to the log, or are missing: the error names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine.recovery.queues_and_index import RecoverySettings
from rmqstore_spark.engine.recovery.recover import recover
from rmqstore_spark.errors import CorruptStoreError
from tests.support.stores.golden import load_records
from tests.support.stores.recovering import copy_store, opened, tree

Golden = Callable[[str], Path]
SIZE = 262144  # bytes of a segment in `basic`, which has eleven


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Path:
    return copy_store(golden("basic"), tmp_path)


def refusal(store: Path) -> CorruptStoreError:
    before = tree(store)
    with pytest.raises(CorruptStoreError) as caught:
        recover(str(store), RecoverySettings(lambda: 1_800_000_000_000))
    assert tree(store) == before
    return caught.value


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("data", [b"", b"x", bytes(SIZE), bytes(100)], ids=len)
@pytest.mark.parametrize("name", [7, SIZE + 1, 11 * SIZE + 7, 40 * SIZE, 10**19])
def test_a_file_that_is_none_of_the_log_is_named(
    store: Path, name: int, data: bytes, is_killed: bool
) -> None:
    odd = store / "commitlog" / f"{name:020}"
    odd.write_bytes(data)
    if is_killed:
        (store / "abort").touch()
    error = refusal(store)
    assert error.file == str(odd)
    assert "Move this file out" in error.remedy
    assert "leave the others where they are" in error.remedy


def test_a_file_before_the_log_that_is_none_of_it_is_named(golden: Golden, tmp_path: Path) -> None:
    store = copy_store(golden("trimmed"), tmp_path)
    odd = store / "commitlog" / f"{0:020}"
    odd.write_bytes(bytes(65536))
    assert refusal(store).file == str(odd)


def test_a_segment_of_a_later_place_shows_that_others_are_missing(store: Path) -> None:
    """It is of this log: nothing is to be moved before the missing files were sought."""
    lost = store / "commitlog" / f"{3 * SIZE:020}"
    lost.unlink()
    error = refusal(store)
    assert f"from {3 * SIZE} to {4 * SIZE}" in str(error)
    assert error.remedy.startswith("Restore the missing files")
    assert f"(3: {0:020}" in error.remedy


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link"])
def test_what_has_a_segments_name_and_is_none(store: Path, tmp_path: Path, kind: str) -> None:
    odd = store / "commitlog" / f"{11 * SIZE:020}"
    if kind == "folder":
        odd.mkdir()
    else:
        target = tmp_path / "elsewhere"
        if kind == "link":
            target.write_bytes(bytes(SIZE))
        odd.symlink_to(target)
    error = refusal(store)
    assert error.file == str(odd)
    assert kind.split()[-1] in str(error)


@pytest.mark.parametrize("name", ["README.txt", ".nfs000000000abc", ".0000.Xy12z", "x.swp", "7"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/TopicTest/0", "index"])
def test_files_of_others_do_not_matter(golden: Golden, store: Path, folder: str, name: str) -> None:
    stray = store / folder / name
    stray.write_bytes(b"somebody's")
    with opened(store, golden("basic")) as found:
        assert found.queues.max_offset("TopicTest", 0) == sum(
            (r.topic, r.queue_id) == ("TopicTest", 0) for r in load_records(golden("basic"))
        )
        assert not found.summary.removed_index_files
    assert stray.read_bytes() == b"somebody's"


def test_the_last_segment_of_a_brokers_store(golden: Golden, tmp_path: Path) -> None:
    """Of a killed broker: one is missed if queues name it, and one that it made ahead is not."""
    folder = golden("unclean")
    store = copy_store(folder, tmp_path)
    log = sorted((store / "commitlog").iterdir())
    assert not any(log[-1].read_bytes())
    log[-1].unlink()
    whole = Path(shutil.copytree(store, tmp_path / "whole"))
    with opened(whole, folder) as found:
        assert found.summary.lost is None
    log[-2].unlink()
    error = refusal(store)
    assert error.file == str(log[-2])
    assert "names a record that ends at physical offset" in str(error)
    with opened(store, folder, cut=True) as found:
        assert found.log_end == int(log[-2].name)
        lost = [r for r in load_records(folder) if r.physical_offset >= found.log_end]
        assert found.summary.lost is not None
        assert 0 < found.summary.lost.entries <= len(lost)
