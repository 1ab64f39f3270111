"""The CommitLog's own parts: segments made ahead, what is flushed, what is hidden."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.log.placement import place
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import WRITE_BYTES
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.record.filler import MIN_FILLER
from rmqstore_spark.layout.record.format import encode_blank
from rmqstore_spark.layout.spans import I4, I8, U1
from tests.support.stores.storing import until

SIZE = 4096
BLANK = encode_blank(8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    return tmp_path / "commitlog"


@pytest.fixture
def files(folder: Path) -> Iterator[SegmentFiles]:
    made = SegmentFiles(str(folder), str(folder.parent / "rmqstore" / "ready"), SIZE)
    yield made
    made.close()


def records(*sizes: int) -> tuple[I4, U1, I8]:
    """Bytes that stand for records: sizes, data, starts."""
    lengths = np.array(sizes, np.int32)
    data = np.concatenate([np.full(size, n + 1, np.uint8) for n, size in enumerate(sizes)])
    return lengths, data, (np.cumsum(lengths) - lengths).astype(np.int64)


def append(log: CommitLogWriter, *sizes: int) -> None:
    lengths, data, starts = records(*sizes)
    placement = place(lengths, log.max_offset, log.segment_size)
    log.reserve_until(placement.end)
    log.write(placement, data, starts)


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def test_the_next_segment_is_made_ahead(folder: Path, files: SegmentFiles) -> None:
    ready = folder.parent / "rmqstore" / "ready"
    log = CommitLogWriter(files, 0, 0)
    append(log, 2000)
    assert not ready.exists()
    append(log, 1000)
    until(lambda: ready.exists() and ready.stat().st_size == SIZE)
    until(lambda: files._ready)
    inode = ready.stat().st_ino
    assert names(folder) == [0]  # nothing is in the log before its turn
    append(log, 2000)
    assert (folder / f"{SIZE:020}").stat().st_ino == inode
    log.close()
    assert names(folder) == [0, SIZE]
    assert not ready.exists()


def test_what_a_crash_left_ready_is_made_anew(folder: Path) -> None:
    ready = folder.parent / "rmqstore" / "ready"
    ready.parent.mkdir()
    ready.write_bytes(b"half")
    files = SegmentFiles(str(folder), str(ready), SIZE)
    assert not ready.exists()
    log = CommitLogWriter(files, 0, 0)
    append(log, 3000, 3000)
    log.close()
    assert {path.stat().st_size for path in folder.iterdir()} == {SIZE}


@pytest.mark.fault
def test_a_ready_segment_on_another_disk_is_made_in_place(
    folder: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    log = CommitLogWriter(files, 0, 0)
    append(log, 3000)
    until(lambda: files._ready)
    monkeypatch.setattr(os, "rename", elsewhere)
    append(log, 3000)
    assert names(folder) == [0, SIZE]


def test_blanks_close_segments(folder: Path, files: SegmentFiles) -> None:
    log = CommitLogWriter(files, 0, 0)
    append(log, 3000, 2000, SIZE - 8, 10)
    blank = encode_blank(SIZE - 3000)[:8]
    first = (folder / f"{0:020}").read_bytes()
    assert first == bytes([1]) * 3000 + blank + bytes(SIZE - 3008)
    third = (folder / f"{2 * SIZE:020}").read_bytes()
    assert third == bytes([3]) * (SIZE - 8) + encode_blank(8)
    assert log.max_offset == 3 * SIZE + 10


def test_one_write_a_segment(
    folder: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwritev, []

    def counted(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", counted)
    log = CommitLogWriter(files, 0, 0)
    append(log, *[500] * 30)
    assert len(calls) == len(set(calls)) == len(names(folder)) == 4


def test_large_writes_are_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwritev, list[int]()

    def counted(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(sum(map(len, buffers)))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", counted)
    size = 4 * WRITE_BYTES
    files = SegmentFiles(str(folder), str(folder.parent / "ready"), size)
    first, second = 2 * WRITE_BYTES + 7, WRITE_BYTES
    append(CommitLogWriter(files, 0, 0), first, second, size - 8)
    files.close()
    assert max(calls) <= WRITE_BYTES + len(BLANK)
    data = bytes([1]) * first + bytes([2]) * second
    blank = encode_blank(size - len(data))[: len(BLANK)]
    assert (folder / f"{0:020}").read_bytes() == (data + blank).ljust(size, b"\0")
    assert (folder / f"{size:020}").read_bytes() == bytes([3]) * (size - 8) + bytes(8)


def test_a_flush_takes_what_is_new_in_order(
    folder: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_data, real_all = os.fdatasync, os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(folder)))
        real_data(descriptor)

    def note_all(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(folder)))
        real_all(descriptor)

    told: list[int] = []
    log = CommitLogWriter(files, 0, 0, on_flushed=told.append)
    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note_all)
    append(log, *[900] * 10)
    assert synced.count("") == 3  # the name of each segment, before a record is in it
    synced.clear()
    assert log.flushed_offset == 0
    assert log.flush() == log.flushed_offset == log.max_offset
    assert synced == [f"/{0:020}", f"/{SIZE:020}", f"/{2 * SIZE:020}"]
    assert told == [log.max_offset]
    synced.clear()
    log.flush()
    assert synced == []
    append(log, 10)
    log.flush()
    assert synced == [f"/{2 * SIZE:020}"]


def test_unused_segments_go_at_the_close(folder: Path, files: SegmentFiles) -> None:
    log = CommitLogWriter(files, 0, 0)
    append(log, 100)
    log.reserve_until(3 * SIZE)
    assert names(folder) == [0, SIZE, 2 * SIZE]
    log.close()
    assert names(folder) == [0]


def test_a_log_goes_on_where_it_was(folder: Path, files: SegmentFiles) -> None:
    log = CommitLogWriter(files, 0, 0)
    append(log, 3000)
    end = log.max_offset
    log.close()
    again = CommitLogWriter(SegmentFiles(str(folder), str(folder.parent / "r2"), SIZE), 0, end)
    append(again, 500, 1000)
    again.close()
    assert (folder / f"{0:020}").read_bytes()[3000:3500] == bytes([1]) * 500
    assert again.max_offset == SIZE + 1000


@pytest.mark.fault
def test_promise_5_after_a_failed_flush_there_is_no_other(
    files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = CommitLogWriter(files, 0, 0)
    append(log, 100)
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StoreWriteError):
        log.flush()
    monkeypatch.undo()
    with pytest.raises(StoreWriteError):
        log.flush()
    assert log.flushed_offset == 0


@pytest.mark.fault
def test_promise_6_a_segment_that_cannot_be_made_leaves_nothing(
    folder: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = CommitLogWriter(files, 0, 0)
    append(log, 100)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreWriteError) as caught:
        append(log, 4000)
    assert caught.value.errno == errno.ENOSPC
    assert (names(folder), log.max_offset) == ([0], 100)
    monkeypatch.undo()
    append(log, 4000)
    assert log.max_offset == SIZE + 4000


def test_segments_have_their_blocks(folder: Path) -> None:
    shutil.rmtree(folder.parent / "rmqstore", ignore_errors=True)
    size = 1 << 20
    files = SegmentFiles(str(folder), str(folder.parent / "rmqstore" / "ready"), size)
    log = CommitLogWriter(files, 0, 0)
    append(log, 100)
    status = (folder / f"{0:020}").stat()
    assert (status.st_size, status.st_blocks * 512 >= size) == (size, True)
    log.close()


@given(st.integers(0, 3000), st.integers(0, 400))
def test_a_block_is_reserved_where_a_blank_or_a_filler_leads_to_it(end: int, room: int) -> None:
    size = 1000
    end -= min(end % size, max(0, end % size - (size - BLANK_SIZE)))  # no log ends in less
    with TemporaryDirectory() as folder:
        log = CommitLogWriter(SegmentFiles(folder, f"{folder}/own/ready", size), 0, end)
        block = log.reserve(room)
        assert end <= block.limit <= block.begin
        assert block.begin % size <= size - BLANK_SIZE
        assert (
            block.begin % size == 0
            or block.begin - end in range(room // 2, room + BLANK_SIZE)
            or (block.begin == end)
        )
        segment = block.begin - block.begin % size
        for reached in {end, block.limit}:  # where others may end before it is published
            start = max(reached, segment)
            assert start == block.begin or block.begin - start >= MIN_FILLER


def test_after_an_expiry_that_could_not_be_flushed_the_next_segment_can_expire(
    files: SegmentFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLogWriter(files, 0, 0)
    append(log, *[3000] * 4)
    log.flush()
    real: Any = os.open

    def failing(path: Any, *others: Any, **named: Any) -> int:
        if path == str(folder):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(real(path, *others, **named))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(StoreWriteError, match="Too many open files"):
        log.expire(0)
    monkeypatch.undo()
    assert (log.min_offset, names(folder)[0]) == (SIZE, SIZE)
    log.expire(SIZE)
    assert (log.min_offset, names(folder)[0]) == (2 * SIZE, 2 * SIZE)
    log.close()
