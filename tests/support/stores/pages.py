"""What the page cache holds of files, and how a test empties it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rmqstore_spark.files.systems.reads import PAGE, resident_pages
from tests.support.waiting import eventually

__all__ = ["drop_pages", "is_refused_when_cold", "resident"]


def resident(path: Path, begin: int = 0, end: int | None = None) -> float:
    """Return which part of a range of a file is in the page cache, 0 to 1; of the file's owner."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        last = os.fstat(descriptor).st_size if end is None else end
        first = begin // PAGE
        return float(resident_pages(descriptor, first, -(-last // PAGE) - first).mean())
    finally:
        os.close(descriptor)


def drop_pages(path: Path, begin: int = 0, end: int = 0) -> None:
    """Write a range of a file to disk and drop its pages; end 0 is the end of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        length = end - begin if end else 0
        os.posix_fadvise(descriptor, begin, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def is_refused_when_cold(files: Sequence[Path], read: Callable[[], object]) -> None:
    """Check that a read that may not wait raises BlockingIOError if files are not in memory.

    It is tried again: the system begins to read what it refuses, and looks once more, by when the
    disk may have been faster.
    """

    def is_refused() -> bool:
        for file in files:
            drop_pages(file)
        try:
            read()
        except BlockingIOError:
            return True
        return False

    eventually(is_refused)
