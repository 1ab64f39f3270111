"""What is written of a file that has its full length from the start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import solid_end, written_end
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.local import LocalFiles

SIZE = 1 << 20


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(33 << 20)
        file.write(b"\0\0x\0")
    return path


def test_the_end_of_what_is_written(sparse: Path) -> None:
    assert written_end(str(sparse), 0) == (33 << 20) + 3
    assert written_end(str(sparse), (33 << 20) + 2) == (33 << 20) + 3
    assert written_end(str(sparse), (33 << 20) + 3) is None
    assert written_end(str(sparse), 64 << 20) is None


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves no room")
def test_what_is_read_makes_no_data_of_what_follows(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk / "reserved"
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)
        os.pwrite(file.fileno(), b"x", 0)
        for at in (98, 4 << 20):  # one after the other: the system goes ahead
            os.pread(file.fileno(), 4 << 20, at)
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, at: int) -> bytes:
        read.append(count)
        return pread(descriptor, count, at)

    monkeypatch.setattr(os, "pread", counted)
    assert written_end(str(path), 98) is None
    assert sum(read) <= 32 << 20


def test_a_missing_file_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(StoreWriteError, match="could not be read"):
        written_end(str(tmp_path / "file"), 0)


@pytest.mark.parametrize(
    ("written", "solid"),
    [([], 0), ([0], 1 << 16), ([0, 1], 2 << 16), ([1], None), ([0, 5], None)],
)
def test_a_file_is_solid_up_to_its_only_hole(
    written: list[int], solid: int | None, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(SIZE)
        for block in written:
            file.seek(block << 16)
            file.write(b"x" * (1 << 16))
        file.flush()
        assert solid_end(file.fileno(), SIZE) == solid


def test_a_full_file_is_solid(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert solid_end(descriptor, 100) == 100
    finally:
        os.close(descriptor)


def test_what_follows_what_is_used_are_zeros(sparse: Path) -> None:
    files = LocalFiles()
    assert files.used_size(str(sparse)) is None  # there is a hole before it
    with sparse.open("r+b") as file:
        file.truncate(1 << 20)
        file.seek(0)
        file.write(b"x" * 5_000)
    used = files.used_size(str(sparse))
    assert used is not None
    assert 5_000 <= used <= 1 << 16


def test_the_used_end_of_a_segment(tmp_path: Path) -> None:
    for start, written in ((0, SIZE), (SIZE, 100)):
        with (tmp_path / f"{start:020}").open("wb") as file:
            file.write(b"x" * written)
            file.truncate(SIZE)
    segments = Segments.load(LocalFiles(), [str(tmp_path)])
    first, last = segments
    assert segments.used_end(first) == SIZE
    assert SIZE + 100 <= segments.used_end(last) <= SIZE + (1 << 16)
