"""The flush mark: what it says, when it says it, and that it never keeps a store from opening."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.log.flush import load_mark
from rmqstore_spark.layout.checkpoint import FLUSH_MARK_SIZE, FlushMark
from tests.fault.messages import block
from tests.fault.stores import settings

MARK = FlushMark(123456, 16384)


def test_a_mark_comes_back() -> None:
    assert len(MARK.encode()) == FLUSH_MARK_SIZE
    assert FlushMark.decode(MARK.encode()) == MARK


@pytest.mark.parametrize("at", range(FLUSH_MARK_SIZE))
def test_a_changed_byte_is_no_mark(at: int) -> None:
    data = bytearray(MARK.encode())
    data[at] ^= 1
    assert FlushMark.decode(bytes(data)) is None


@pytest.mark.parametrize("data", [b"", MARK.encode()[:-1], MARK.encode() + b"0", bytes(53)])
def test_other_bytes_are_no_mark(data: bytes) -> None:
    assert FlushMark.decode(data) is None


def marked(store: Path) -> int:
    mark = load_mark(str(store / "rmqstore" / "flushed"))
    assert mark is not None
    assert mark.segment_size == 16384
    return mark.offset


def test_the_mark_is_there_before_a_put_is_acknowledged(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", settings(flushDiskType="SYNC_FLUSH")) as store:
        assert marked(tmp_path / "s") == 0
        for number in range(0, 60, 6):
            assert store.put(block(number, 6)).ok
            assert marked(tmp_path / "s") == store.published_end
    assert marked(tmp_path / "s") > 16384


def test_under_async_flush_it_says_what_is_on_disk(tmp_path: Path) -> None:
    given = settings(flushDiskType="ASYNC_FLUSH", flushIntervalCommitLog=10_000)
    with StoreWriter.open(tmp_path / "s", given) as store:
        assert store.put(block(0, 6)).ok
        assert marked(tmp_path / "s") == 0
        assert store.flush()["flushedOffset"] == marked(tmp_path / "s") == store.published_end


def test_a_mark_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/rmqstore/flushed"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, at)

    with StoreWriter.open(tmp_path / "s", settings(flushDiskType="SYNC_FLUSH")) as store:
        monkeypatch.setattr(os, "pwrite", full)
        with caplog.at_level(logging.WARNING):
            assert store.put(block(0, 6)).ok
            assert store.put(block(6, 6)).ok
        assert caplog.text.count("nothing records how far the log is flushed") == 1
        assert marked(tmp_path / "s") == 0
        monkeypatch.undo()
    with StoreWriter.open(tmp_path / "s", settings()) as store:
        assert marked(tmp_path / "s") == store.published_end > 0
