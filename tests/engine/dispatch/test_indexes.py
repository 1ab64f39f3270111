from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.engine.dispatch.indexes import IndexFiles, IndexShape, index_name
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.format import IndexHeader
from rmqstore_spark.layout.spans import I4, I8
from tests.support.stores.storing import until
from tests.support.waiting import PATIENCE

SHAPE = IndexShape(slots=50, entries=100)
NOW = 1_795_219_334_515


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[IndexFiles]:
    made = IndexFiles(str(tmp_path), clock=lambda: NOW, shape=SHAPE)
    yield made
    made.close()


def keys(first: int, count: int) -> tuple[I4, I8, I8]:
    numbers = np.arange(first, first + count, dtype=np.int64)
    hashes = (numbers * 2654435761 % 1000).astype(np.int32)
    return hashes, numbers * 300, NOW + numbers * 10


def one_by_one(count: int) -> list[bytes]:
    """The same keys in the IndexFile of `layout`."""
    found = []
    made = IndexFile.create(SHAPE.slots, SHAPE.entries)
    for number in range(count):
        if made.is_full:
            found.append(made.encode())
            made = IndexFile.create(SHAPE.slots, SHAPE.entries, after=made.header)
        made.insert(*keys(number, 1))
    return [*found, made.encode()]


def contents(store: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((store / "index").iterdir())]


@pytest.mark.parametrize("step", [1, 13, 400])
def test_content_is_that_of_one_by_one_insertion(
    indexes: IndexFiles, tmp_path: Path, step: int
) -> None:
    for first in range(0, 330, step):
        indexes.insert(*keys(first, min(step, 330 - first)))
    indexes.flush()
    assert contents(tmp_path) == one_by_one(330)


def test_until_a_flush_no_header_counts_what_its_slots_do_not_lead_to(
    indexes: IndexFiles, tmp_path: Path
) -> None:
    indexes.insert(*keys(0, 40))
    (data,) = contents(tmp_path)
    assert IndexHeader.decode(data).index_count == 0
    assert not any(data[40 : 40 + 4 * SHAPE.slots])
    indexes.flush()
    (data,) = contents(tmp_path)
    assert IndexHeader.decode(data).index_count == 41


def test_full_files_are_sealed_and_said(tmp_path: Path) -> None:
    sealed: list[int] = []
    indexes = IndexFiles(str(tmp_path), clock=lambda: NOW, shape=SHAPE, on_sealed=sealed.append)
    indexes.insert(*keys(0, 99))
    indexes.flush()
    assert sealed == []  # it is followed by another only with the next key
    indexes.insert(*keys(99, 50))
    indexes.flush()
    assert sealed == [NOW + 98 * 10]
    indexes.insert(*keys(149, 550))  # more than are held unsealed
    indexes.flush()
    assert sealed == [NOW + (99 * n - 1) * 10 for n in range(1, 8)]
    indexes.close()


@pytest.mark.parametrize("files", [1, 3])
def test_keys_are_inserted_while_the_disk_takes_a_full_file(
    indexes: IndexFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """One more is sealed by who inserts, if too many wait: it waits for the one on its way."""
    syncing, go = threading.Event(), threading.Event()
    real = os.fdatasync

    def held(descriptor: int) -> None:
        syncing.set()
        assert go.wait(PATIENCE)
        real(descriptor)

    indexes.insert(*keys(0, 150))
    monkeypatch.setattr(os, "fdatasync", held)
    flushing = threading.Thread(target=indexes.flush)
    inserting = threading.Thread(target=indexes.insert, args=keys(150, 99 * files))
    flushing.start()
    assert syncing.wait(PATIENCE)
    try:
        inserting.start()
        if files == 1:
            inserting.join(PATIENCE)
            assert not inserting.is_alive()
        else:
            until(lambda: len(indexes.names) == 3)
    finally:
        go.set()
        inserting.join(PATIENCE)
        flushing.join(PATIENCE)
    monkeypatch.undo()
    indexes.flush()
    assert contents(tmp_path) == one_by_one(150 + 99 * files)


def test_it_goes_on_with_a_file_that_has_room(indexes: IndexFiles, tmp_path: Path) -> None:
    indexes.insert(*keys(0, 150))
    indexes.flush(sync=True)
    indexes.close()
    last = max(os.listdir(tmp_path / "index"))
    header = IndexHeader.decode((tmp_path / "index" / last).read_bytes())
    more = IndexFiles(str(tmp_path), clock=lambda: 0, shape=SHAPE, last=last, after=header)
    more.resume(SHAPE)
    more.insert(*keys(150, 180))
    more.flush()
    more.close()
    assert contents(tmp_path) == one_by_one(330)


def test_names_go_up_whatever_the_clock_says(tmp_path: Path) -> None:
    times = iter([NOW, NOW - 100_000, NOW, NOW + 5, 0])
    indexes = IndexFiles(str(tmp_path), clock=lambda: next(times), shape=SHAPE)
    indexes.insert(*keys(0, 99 * 5))
    indexes.flush()
    indexes.close()
    first = index_name(NOW)
    assert indexes.names == sorted(os.listdir(tmp_path / "index"))
    assert indexes.names[0] == first
    assert indexes.names[1] == f"{int(first) + 1:017}"
    assert all(len(name) == 17 for name in indexes.names)


def test_files_between_others_get_names_between_theirs(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    there = ["20200101000000000", "20200101000000003", "20200101000000500"]
    for name in there:
        (tmp_path / "index" / name).write_text(name)
    indexes = IndexFiles(
        str(tmp_path), clock=lambda: NOW, shape=SHAPE, last=there[0], before=there[-1]
    )
    indexes.insert(*keys(0, 300))
    indexes.flush()
    indexes.close()
    assert indexes.names == [f"202001010000000{n:02}" for n in (1, 2, 4, 5)]
    assert all((tmp_path / "index" / name).read_text() == name for name in there)


def test_where_no_name_is_left_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    names = "20200101000000000", "20200101000000001"
    indexes = IndexFiles(
        str(tmp_path), clock=lambda: NOW, shape=SHAPE, last=names[0], before=names[1]
    )
    with pytest.raises(StoreWriteError, match="no name is left"):
        indexes.insert(*keys(0, 3))
    assert not os.listdir(tmp_path / "index")


def test_after_a_failure_it_goes_on_where_it_was(indexes: IndexFiles, tmp_path: Path) -> None:
    indexes.insert(*keys(0, 50))
    # no next file can be made: a file is where the folder should be
    os.rename(tmp_path / "index", tmp_path / "elsewhere")
    (tmp_path / "index").write_text("in the way")
    with pytest.raises(StoreWriteError, match="index"):
        indexes.insert(*keys(50, 100))
    with pytest.raises(StoreWriteError):
        indexes.settle()
    os.unlink(tmp_path / "index")
    os.rename(tmp_path / "elsewhere", tmp_path / "index")
    indexes.settle()
    indexes.insert(*keys(150, 180))
    indexes.flush()
    assert contents(tmp_path) == one_by_one(330)


def test_a_file_whose_name_could_not_be_flushed_is_made_again(
    indexes: IndexFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes.insert(*keys(0, 50))
    real: Any = os.open

    def failing(path: Any, *others: Any, **named: Any) -> int:
        if path == str(tmp_path / "index"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(real(path, *others, **named))

    held = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(StoreWriteError, match="Too many open files"):
        indexes.insert(*keys(50, 100))
    for _ in range(3):
        with pytest.raises(StoreWriteError, match="Too many open files"):
            indexes.settle()
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) <= held
    indexes.settle()
    indexes.insert(*keys(150, 180))
    indexes.flush()
    assert contents(tmp_path) == one_by_one(330)


def test_files_are_for_their_user_alone(indexes: IndexFiles, tmp_path: Path) -> None:
    indexes.insert(*keys(0, 1))
    (path,) = (tmp_path / "index").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SHAPE.file_size
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o700
