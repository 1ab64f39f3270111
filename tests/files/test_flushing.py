"""A flush that fails: what a start finds after that must be what the disk has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import sync_file


def test_bytes_that_could_not_be_flushed_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes them for flushed, and a second flush would succeed."""
    (path := tmp_path / "file").write_bytes(b"written")
    forgotten: list[str] = []

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def note(descriptor: int, offset: int, size: int, advice: int) -> None:
        assert (offset, size, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        forgotten.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "posix_fadvise", note)
    with pytest.raises(StoreWriteError, match="could not be flushed"):
        sync_file(str(path))
    assert forgotten == [str(path)]
