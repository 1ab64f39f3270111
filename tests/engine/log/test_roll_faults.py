"""What fails while the log continues in new segments: flushes, and files that cannot be opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from tests.support.stores.storing import config, in_queues, messages, until

SELDOM = {"flushIntervalCommitLog": 3_600_000}
MANY_SEGMENTS = [bytes([n]) * 3000 for n in range(100)]


@pytest.mark.fault
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_promise_5_a_flush_that_many_segments_need_is_the_last_one_too(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fdatasync

    def failing(descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    with StoreWriter.open(tmp_path / "s", config(**SELDOM)) as store:
        assert store.put_batch(messages([b"good"])).ok
        monkeypatch.setattr(os, "fdatasync", failing)
        refused = store.put_batch(messages(MANY_SEGMENTS))
        assert (refused.status, refused.rows) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
        monkeypatch.undo()
        assert store.state == "FAILED"
        assert store.put_batch(messages([b"no"])).status is PutStatus.SERVICE_NOT_AVAILABLE
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"new"])).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"good", b"new"]}


@pytest.mark.fault
def test_a_segment_that_was_made_and_not_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = os.open

    def failing(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if os.path.basename(path) == f"{4096:020}" and not flags & os.O_CREAT:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(real(path, flags, *others, **named))

    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok
        monkeypatch.setattr(os, "open", failing)
        large = messages([b"b" * 3990])
        assert store.put_batch(large).status is PutStatus.CREATE_MAPEDFILE_FAILED
        monkeypatch.undo()
        assert store.put_batch(large).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"b" * 3990]}


@pytest.mark.fault
def test_promise_6_a_full_disk_is_not_tried_with_each_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def full(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok
        monkeypatch.setattr(os, "posix_fallocate", full)
        for size in (2500, 1, 1, 1, 1):  # past half of the segment the next one is wanted
            assert store.put_batch(messages([b"b" * size])).ok
            until(lambda: not store._store.log._files._wanted)
        assert tries == 1
        assert (
            len([line for line in caplog.messages if "could not be created ahead of time" in line])
            == 1
        )


@pytest.mark.fault
def test_too_many_open_files_do_not_end_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real: Any = os.open

    def failing(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if "/consumequeue/" in os.fspath(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(real(path, flags, *others, **named))

    with StoreWriter.open(tmp_path / "s", config(flushIntervalConsumeQueue=1)) as store:
        monkeypatch.setattr(os, "open", failing)
        assert store.put_batch(messages([b"a"])).ok
        store._workers._flush_queues_if_room()
        until(lambda: store._workers.dispatcher.stalled is not None)
        monkeypatch.undo()
        until(lambda: store.put_batch(messages([b"b"])).ok)
        store.flush()
        caplog.clear()
        monkeypatch.setattr(os, "open", failing)
        assert store.put_batch(messages([b"c"])).ok  # its file is open; flushing opens it again
        until(lambda: "Queues and index cannot be flushed for now" in caplog.text)
        for _ in range(3):
            store._workers._flush_queues_if_room()
        assert store.state == "RUNNING"
        monkeypatch.undo()
        until(lambda: "Queues and index are flushed again." in caplog.text)
    assert caplog.text.count("Queues and index cannot be flushed for now") == 1
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"b", b"c"]}


@pytest.mark.fault
def test_a_segment_whose_name_could_not_be_flushed_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = os.open
    flushes: list[str] = []

    def failing(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if os.path.basename(path) == "commitlog":
            flushes.append(path)
            if len(flushes) == 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return int(real(path, flags, *others, **named))

    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok
        monkeypatch.setattr(os, "open", failing)
        refused = store.put_batch(messages(MANY_SEGMENTS))
        assert (refused.status, refused.rows) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
        assert len(flushes) == 3
    monkeypatch.undo()
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"b"])).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"b"]}
