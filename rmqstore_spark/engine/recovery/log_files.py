"""Looks over the files of a log before it is opened: which belong to it, and which do not.

A crash can leave empty files after the last one, and a short last one; these are repaired once it
is certain that the log ends there. Whatever else does not fit is refused, and named.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, sync_folder
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.record.format import decode_records

_NAMED: Final = 3
"""File names that an error lists."""


class _File(NamedTuple):
    start: int
    size: int
    path: str


@dataclass(frozen=True)
class LogFolder:
    """The files of a log.

    Attributes:
        folder: their folder.
        segment_size: bytes of a segment; 0 without any.
        end: physical offset at which the last file that is not empty ends, at its full length.
        empty: files of 0 bytes after it, which a crash left, or which have lost their bytes.
        short: the last file, if it is shorter than the others; "" if not.
        short_size: its bytes.
    """

    folder: str
    segment_size: int
    end: int
    empty: tuple[str, ...]
    short: str = ""
    short_size: int = 0

    def remove_empty(self) -> None:
        """Remove the empty files.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        for path in self.empty:
            with explained(path, "removed"):
                os.unlink(path)
        if self.empty:
            sync_folder(self.folder)

    @contextmanager
    def at_full_length(self) -> Iterator[None]:
        """Lengthen the short file: what is lacking is read as zeros. An error undoes that.

        Raises:
            StoreWriteError: the file could not be lengthened.
        """
        if not self.short:
            yield
            return
        with explained(self.short, "lengthened"):
            os.truncate(self.short, self.segment_size)
        try:
            yield
        except BaseException:
            os.truncate(self.short, self.short_size)
            raise

    def place(self, offset: int) -> tuple[str, int]:
        """Return the file that holds, or should hold, a physical offset, and the place in it."""
        if not self.segment_size:
            return self.folder, 0
        within = offset % self.segment_size
        return os.path.join(self.folder, f"{offset - within:020}"), within

    def state(self, path: str) -> str:
        """Return what is wrong with a file that should hold the log's end; "" if it is there."""
        if not self.segment_size:
            return "all its files have 0 bytes" if self.empty else "it has no file"
        if path in self.empty:
            return "the file has 0 bytes"
        if path == self.short:
            return f"the file has {self.short_size} of {self.segment_size} bytes"
        if not os.path.lexists(path):
            return "the file is missing"
        return ""


def look_over(folder: str, segment_size: int = 0) -> LogFolder:
    """Look over the files of a log. Nothing is changed.

    Args:
        folder: the folder of the log. Files with other names than segments are passed over.
        segment_size: bytes of a segment, if that was written down; else the size of most files.

    Raises:
        CorruptStoreError: a file does not belong to the log; or one before the last is missing, or
            has another length than the others.
    """
    found = _segments(folder)
    sizes = Counter(file.size for file in found if file.size)
    if not sizes:
        return LogFolder(folder, 0, 0, tuple(file.path for file in found))
    usual = max(sizes, key=lambda size: (sizes[size], size))
    if usual < segment_size and len(sizes) == 1 and sizes[usual] == 1:
        usual = segment_size  # the only file, and cut short
    _refuse_strangers(found, usual)
    while not found[-1].size:
        found.pop()
    _refuse_gaps(folder, found, usual)
    last = found[-1]
    return LogFolder(
        folder,
        usual,
        last.start + usual,
        tuple(file.path for file in _segments(folder) if file.start > last.start),
        *((last.path, last.size) if last.size < usual else ()),
    )


def _segments(folder: str) -> list[_File]:
    """Return the files with names of segments, in their order."""
    found = []
    for name in sorted(os.listdir(folder)):
        start, path = segment_start(name), os.path.join(folder, name)
        if start is None:
            continue
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "no plain file"
            if stat.S_ISLNK(status.st_mode):
                what = f"a link to {os.readlink(path)}"
            raise CorruptStoreError(
                f"{what} has the name of a segment of the log",
                file=path,
                remedy="Move it out of `commitlog/`. Segments are plain files; `commitlog` itself "
                "may be a link to a folder on another disk.",
            )
        found.append(_File(start, status.st_size, path))
    return found


def _refuse_strangers(found: list[_File], usual: int) -> None:
    """Refuse files whose names no segment of this log can have, and files past its end.

    Two files that do not adjoin: if one of them does not begin with a record of its place, it is
    none of the log. Otherwise files between them are missing.
    """
    for file in found:
        if file.start % usual:
            raise CorruptStoreError(
                f"the name is not a multiple of the segments' size ({usual} bytes), so the file "
                "does not belong to this log",
                file=file.path,
                remedy="Move this file out of `commitlog/`, and leave the others where they are.",
            )
    for before, after in pairwise(found):
        if after.start == before.start + usual:
            continue
        for file, other in ((after, before), (before, after)):
            if _holds_its_place(file):
                continue
            raise CorruptStoreError(
                f"the file does not adjoin {os.path.basename(other.path)}, and does not begin with "
                "a record of its place: it does not belong to this log",
                file=file.path,
                remedy="Move this file out of `commitlog/`, and leave the others where they are. "
                "If files of the log are missing, restore them too.",
            )


def _holds_its_place(file: _File) -> bool:
    """Return whether a file begins with a record that states this very place."""
    with open(file.path, "rb") as opened:
        head = opened.read(4)
        size = int.from_bytes(head, "big", signed=True)
        if len(head) < 4 or not MIN_RECORD_SIZE <= size <= MAX_RECORD_SIZE:
            return False
        raw = np.frombuffer(head + opened.read(size - 4), np.uint8)
    record = decode_records(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    return record.status[0] == 0 and int(record.physical_offset[0]) == file.start


def _refuse_gaps(folder: str, found: list[_File], usual: int) -> None:
    """Refuse a log that lacks files, or parts of files, before its last one."""
    for number, file in enumerate(found):
        is_last = number == len(found) - 1
        if file.size == usual or (is_last and file.size < usual):
            continue
        raise CorruptStoreError(
            f"the file has {file.size} bytes, and the other files of the log have {usual}",
            file=file.path,
            remedy="Restore it from a copy of the store.",
        )
    for number, (before, after) in enumerate(pairwise(found)):
        if after.start != before.start + usual:
            count = number + 1
            names = [os.path.basename(file.path) for file in found[:count]]
            shown = ", ".join(names[:_NAMED]) + (", ..." if count > _NAMED else "")
            raise CorruptStoreError(
                f"no file holds the log from {before.start + usual} to {after.start}",
                file=folder,
                remedy="Restore the missing files from a copy of the store. Without a copy, the "
                f"log can only begin after the gap: keep the files before it ({count}: {shown}) "
                "elsewhere, and take them out of `commitlog/`. Then their messages are no longer "
                "in the store.",
            )
