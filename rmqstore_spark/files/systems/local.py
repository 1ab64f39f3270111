"""Read the local file system with `pread`, on descriptors that stay open.

Never with mmap: truncating a mapped file kills the process (SIGBUS), and page faults on cold pages
cost more than reads.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakSet

import numpy as np

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.durable import solid_end
from rmqstore_spark.files.systems.base import (
    FileInfo,
    FileRange,
    HandleCache,
    Int64Array,
    Listing,
    UInt8Array,
    join,
    most_open_files,
    translated,
    walk_by_folder,
)
from rmqstore_spark.files.systems.reads import PLAIN, DiskReads

_OPEN_FILES = 128
_MOST_OPEN_FILES = 4096
_SHARE = 8  # of the files that the process may have open, for all stores that it reads

# Do not wait for the other end of a pipe or take over a terminal: `_open` refuses such files.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

# Longer reads check the file's size first, so that they do not allocate what is not there.
_UNCHECKED_READ = 1 << 20


class _Opened(NamedTuple):
    descriptor: int
    device: int
    inode: int


class LocalFiles:
    """`Files` of this machine. Descriptors work after a fork, since `pread` has no position.

    A file that was removed while open remains readable, until its folder is listed again. Then, if
    sizes are asked for, a file that was replaced is noticed, too.

    Args:
        open_files: maximum number of open descriptors; by default a part of what the process may
            have, which all such objects share. So planning over a thousand queues does not open
            each file again and again.
        reads: how bytes are read.
    """

    place = ""
    is_local = True
    lists_trees = False
    reads_together = False
    max_gap = 4096
    max_waste = 8
    block = 20 << 10
    stretch = 1 << 20  # what is decoded next is still in the processor's cache

    def __init__(self, open_files: int | None = None, reads: DiskReads = PLAIN) -> None:
        self._open_files = open_files
        self._reads = reads
        if open_files is None:
            _sharing.add(self)
        self._handles: HandleCache[_Opened] = HandleCache(_close, open_files or _fair_share)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._open_files, self._reads)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        """Return the entries of a folder by name; see `Files.list`."""
        prefix = join(path, "")
        try:
            with os.scandir(path) as entries:
                found = [self._info(prefix, entry) if sizes else _kind(entry) for entry in entries]
        except OSError as error:
            if error.errno == errno.ENOENT:
                self._handles.drop_below(path.rstrip("/"))
            raise translated(error, path) from error
        found.sort()
        # The system keeps the bytes of a removed file, a whole segment, for as long as it is open.
        for name in self._handles.opened_in(path).difference(info.name for info in found):
            self._handles.drop(prefix + name)
        return found

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """Yield all folders down to `depth` levels below `path`; see `Files.walk`."""
        return walk_by_folder(self, path, depth, on_error)

    def resolve(self, path: str) -> str:
        """Return the path with all links resolved."""
        return os.path.realpath(path)

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise translated(error, path) from error

    def used_size(self, path: str) -> int | None:
        """Return how many of a file's first bytes may hold something; see `Files.used_size`."""
        descriptor = self._descriptor(path)
        try:
            return solid_end(descriptor, os.fstat(descriptor).st_size)
        except OSError as error:
            raise translated(error, path) from error

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.exists(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer only at the end of the file."""
        descriptor = self._descriptor(path)
        try:
            if length > _UNCHECKED_READ:
                length = min(length, max(os.fstat(descriptor).st_size - offset, 0))
            parts = []
            while length > 0:
                part = self._reads.some(descriptor, length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        except OSError as error:
            raise translated(error, path) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_many(self, ranges: Sequence[FileRange]) -> Sequence[bytes]:
        """Read ranges of several files; see `Files.read_many`."""
        some, handle = self._reads.some, self._handles.get
        found = []
        for path, offset, length in ranges:
            data = b""
            if length <= _UNCHECKED_READ:
                try:
                    data = some(handle(path, _open).descriptor, length, offset)
                except OSError as error:
                    raise translated(error, path) from error
            # More than one call reads what is long, and what the system returns in parts.
            found.append(data if len(data) == length else self.read(path, offset, length))
        return found

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` and return the bytes read; fewer only at the end of the file."""
        descriptor = self._descriptor(path)
        view = out.data
        done = 0
        try:
            while done < len(view):
                count = self._reads.some_into(descriptor, view[done:], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise translated(error, path) from error
        return done

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file into `out`, one after the other; see `Files.read_spans`."""
        descriptor = self._descriptor(path)
        try:
            return self._reads.spans(
                descriptor,
                np.ascontiguousarray(offsets, np.int64),
                np.ascontiguousarray(lengths, np.int32),
                out,
            )
        except OSError as error:
            raise translated(error, path) from error

    def close(self) -> None:
        """Close all descriptors."""
        self._handles.close()

    def _descriptor(self, path: str) -> int:
        try:
            return self._handles.get(path, _open).descriptor
        except OSError as error:
            raise translated(error, path) from error

    def _info(self, prefix: str, entry: os.DirEntry[str]) -> FileInfo:
        """Return an entry with its size; a vanished file or a dangling link has size 0."""
        try:
            status = entry.stat()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise
            self._handles.drop(prefix + entry.name)
            return FileInfo(entry.name, 0, False, -1, entry.is_symlink())
        path = prefix + entry.name
        opened = self._handles.peek(path)
        if opened and (opened.device, opened.inode) != (status.st_dev, status.st_ino):
            self._handles.drop(path)  # another file is there now
        is_dir = stat.S_ISDIR(status.st_mode)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        return FileInfo(
            entry.name, size, is_dir, status.st_mtime_ns // 1_000_000, entry.is_symlink()
        )


_sharing: WeakSet[LocalFiles] = WeakSet()


def _fair_share() -> int:
    return most_open_files(_SHARE * max(1, len(_sharing)), _OPEN_FILES, _MOST_OPEN_FILES)


def _kind(entry: os.DirEntry[str]) -> FileInfo:
    """Return an entry from what the folder itself records; only links cost a call."""
    try:
        is_dir = entry.is_dir()
    except OSError:  # a loop of links
        is_dir = False
    return FileInfo(entry.name, 0 if is_dir else -1, is_dir, -1, entry.is_symlink())


def _open(path: str) -> _Opened:
    descriptor = os.open(path, _OPEN_FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RmqStoreError(f"{path} is not a plain file. Remove it from the store.")
    return _Opened(descriptor, status.st_dev, status.st_ino)


def _close(opened: _Opened) -> None:
    os.close(opened.descriptor)
