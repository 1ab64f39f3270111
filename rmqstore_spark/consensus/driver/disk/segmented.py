"""Bytes by their offset, in files of one size: a log, or its index.

A file is named by the offset of its first byte, 20 digits, and has its full size from the start;
what is not written is a hole, or zeros: a flush of bytes that replace zeros changes no metadata,
and takes a fraction of the time. Only the caller's thread uses an object; another may flush what
`take_unflushed` returns meanwhile. What a killed process may not have flushed is flushed when they
are opened.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    explained,
    make_folder,
    sync_data,
    sync_file,
    sync_folder,
    wipe,
    write_all,
)

_AHEAD: Final = 1 << 20
_ZEROS: Final = bytes(_AHEAD)
_SPARE_BYTES: Final = 64 << 20
"""A disk with less room takes no entries: flushes of what was taken must not fail."""
_UNSEEN_BYTES: Final = 8 << 20
_UNSEEN_SECONDS: Final = 0.1
_SMALL: Final = 32 << 10
"""Bytes of a write that is worth the zeros behind it."""
_NAME: Final = re.compile(r"[0-9]{20}")


class _OpenFile:
    """A file that is open until nobody has this object any more: some may still flush it."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = -1
        with explained(path, "opened"):
            self.descriptor = os.open(path, flags, FILE_MODE)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Unflushed:
    """Files and folders that must be flushed."""

    def __init__(self) -> None:
        self._files: list[_OpenFile] = []
        self._folders: set[str] = set()

    def add(self, file: _OpenFile) -> None:
        """Add a file that is open."""
        self._files.append(file)

    def add_folder(self, path: str) -> None:
        """Add the names in a folder."""
        self._folders.add(path)

    def flush(self) -> None:
        """Flush all, in any thread: names first, then files in the order in which they came.

        If the power fails meanwhile, what is lost is likely to be the end.

        Raises:
            StoreWriteError: something could not be flushed.
        """
        for folder in self._folders:
            sync_folder(folder)
        for file in self._files:
            with explained(file.path, "flushed"):
                sync_data(file.descriptor)


class SegmentedFile:
    """The files of a folder.

    Args:
        folder: made if it is not there.
        size: bytes of each file.
        ahead: whether small writes write zeros ahead.

    Attributes:
        apart: offsets of files that follow a missing or empty one, which a power cut can leave of
            what was not flushed. They are not read. `cut` and `clear` remove them.

    Raises:
        CorruptStoreError: files have another size.
        StoreWriteError: a file could not be flushed.
    """

    def __init__(self, folder: str, size: int, *, ahead: bool = False) -> None:
        make_folder(folder)
        self.folder = folder
        self.size = size
        self._open: dict[int, _OpenFile] = {}  # by offset
        self._writes_ahead = ahead
        self._zeroed = 0  # up to here there are no holes behind what was written
        self._renamed = True  # files have come or gone
        with explained(folder, "read"):
            self._starts = sorted(int(name) for name in os.listdir(folder) if _NAME.fullmatch(name))
        self._written: set[int] = set()  # offsets of files that are not flushed
        self.apart: list[int] = []
        for row, start in enumerate(self._starts):
            if start % size:
                raise CorruptStoreError(
                    f"a file of {size} bytes does not belong here", file=self._path(start),
                    remedy="All members of a group need the same mappedFileSizeCommitLog.",
                )  # fmt: skip
            with explained(self._path(start), "read"):
                found = os.path.getsize(self._path(start))
            if found not in (0, size):
                raise CorruptStoreError(
                    f"the file has {found} bytes, and with this configuration {size}",
                    file=self._path(start),
                    remedy="Set mappedFileSizeCommitLog to the size that the group uses.",
                )
            # The last one is empty if the process was killed when it had just made it.
            is_lost = not found and start != self._starts[-1]
            if is_lost or self.apart or start != self._starts[0] + row * size:
                self.apart.append(start)
        del self._starts[len(self._starts) - len(self.apart) :]
        for start in self._starts:
            sync_file(self._path(start))
        if self._starts:
            self._grow(self._starts[-1])

    @property
    def starts(self) -> list[int]:
        """The offsets of the files, in order."""
        return list(self._starts)

    @property
    def end(self) -> int:
        """The offset behind the last file; 0 without one."""
        return self._starts[-1] + self.size if self._starts else 0

    @property
    def has_other_files(self) -> bool:
        """Whether files have come or gone since `take_unflushed`."""
        return self._renamed

    def path(self, offset: int) -> str:
        """Return the path of the file with an offset."""
        return self._path(offset - offset % self.size)

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at an offset, which all lie in one file; the file may be a new one.

        Raises:
            StoreWriteError: they could not be written.
        """
        start = offset - offset % self.size
        assert offset + len(data) <= start + self.size, "no write crosses files"
        if start not in self._starts:
            assert not self._starts or start == self._starts[-1] + self.size, "files follow"
            self._starts.append(start)
            self._grow(start)
            self._renamed = True
        end = offset + len(data)
        file = self._file(start)
        with explained(file.path, "written"):
            write_all(file.descriptor, data, offset - start)
            if self._writes_ahead and end > self._zeroed and len(data) < _SMALL:
                self._zeroed = min(end + _AHEAD, start + self.size)
                write_all(file.descriptor, _ZEROS[: self._zeroed - end], end - start)
        self._written.add(start)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes; fewer where the files end.

        Raises:
            StoreWriteError: they could not be read.
        """
        parts = []
        while size > 0:
            start = offset - offset % self.size
            if start not in self._starts:
                break
            file = self._file(start)
            with explained(file.path, "read"):
                count = min(size, start + self.size - offset)
                part = os.pread(file.descriptor, count, offset - start)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, offset: int) -> None:
        """Forget what is behind an offset: it reads as zeros, or its files are gone.

        Raises:
            StoreWriteError: a file could not be changed.
        """
        self._zeroed = 0
        self.drop_apart()
        for start in reversed([start for start in self._starts if start >= offset]):
            self._remove(start)
        start = offset - offset % self.size
        if start in self._starts:
            wipe(self._path(start), offset - start, self.size)

    def create(self, offset: int) -> None:
        """Make the first file: the one with an offset.

        Raises:
            StoreWriteError: it could not be written.
        """
        start = offset - offset % self.size
        assert not self._starts, "there are files already"
        self._starts.append(start)
        self._grow(start)
        self._renamed = True

    def remove_first(self) -> None:
        """Remove the first file.

        Raises:
            StoreWriteError: it could not be removed.
        """
        self._remove(self._starts[0])

    def clear(self) -> None:
        """Remove all files.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        self._zeroed = 0
        self.drop_apart()
        for start in reversed(self._starts):
            self._remove(start)

    def drop_apart(self) -> None:
        """Remove the files that are apart.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        while self.apart:
            self._unlink(self.apart[-1])
            self.apart.pop()

    def take_unflushed(self, into: Unflushed) -> None:
        """Add all that was written since the last time to what must be flushed."""
        for start in sorted(self._written):
            into.add(self._file(start))
        self._written.clear()
        if self._renamed:
            into.add_folder(self.folder)
            self._renamed = False

    def close(self) -> None:
        """Close the files."""
        self._open.clear()

    def __iter__(self) -> Iterator[int]:
        return iter(self._starts)

    def _path(self, start: int) -> str:
        return os.path.join(self.folder, f"{start:020d}")

    def _file(self, start: int) -> _OpenFile:
        found = self._open.get(start)
        if found is None:
            found = self._open[start] = _OpenFile(self._path(start))
        return found

    def _grow(self, start: int) -> None:
        file = self._file(start)
        with explained(file.path, "written"):
            if os.fstat(file.descriptor).st_size != self.size:
                os.ftruncate(file.descriptor, self.size)
                self._written.add(start)

    def _remove(self, start: int) -> None:
        self._open.pop(start, None)
        self._unlink(start)
        self._starts.remove(start)
        self._written.discard(start)

    def _unlink(self, start: int) -> None:
        with explained(self._path(start), "removed"):
            os.unlink(self._path(start))
        self._renamed = True


class DiskRoom:
    """The room. It is looked at again after some entries, and after some time: others write too.

    Args:
        folder: where the entries go.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._left = 0  # bytes of entries that may come before the next look
        self._until = 0.0  # when it is due, by `time.monotonic`

    def has(self, size: int) -> bool:
        """Return whether there is room for entries of this size, and count them."""
        if size > self._left or time.monotonic() > self._until:
            return self.has_now(size)
        self._left -= size
        return True

    def has_now(self, size: int) -> bool:
        """Return the same, and look for it."""
        found = os.statvfs(self._folder)
        room = found.f_bavail * found.f_frsize - _SPARE_BYTES - size
        self._left = max(min(room, _UNSEEN_BYTES), 0)
        self._until = time.monotonic() + _UNSEEN_SECONDS
        return room >= 0
