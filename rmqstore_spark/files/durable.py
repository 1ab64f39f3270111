"""Write local files so that a power cut leaves the old or the new content, never a mix.

The writer creates, flushes and removes all its small files through this module. See
docs/semantics.md, and RocketMQ's own order of writes in docs/format.md, "Start, recovery". Its
large files have their full length from the start: `written_end` finds what is written of them. The
rest is a hole, which reads as zeros, takes no room, and is skipped without reading it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import StoreWriteError

FILE_MODE = 0o600
FOLDER_MODE = 0o700
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, a quota that is used up, or a file system without a free inode."""
WRITE_BYTES = 128 << 10
"""The most bytes of one write. For a larger one, ext4 and XFS take pages of up to 2 MiB. A system
whose memory is in smaller pieces has to look for them, and a virtual machine that returns unused
memory to its host has to get them back, which takes ten times as long as the copy."""

_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range = _find_sync_file_range()


class _Explained:
    """The context manager of `explained`; a class, as a generator costs more than many a write."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str, doing: str) -> None:
        self._path = path
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreWriteError):
            raise explanation(error, self._path, self._doing) from error


def explanation(error: OSError, path: str, doing: str) -> StoreWriteError:
    """Return the error that names the file; see `explained`."""
    is_disk = error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT)
    hint = " Check the disk." if is_disk else ""
    failure = StoreWriteError(f"{path} could not be {doing}: {error.strerror or error}.{hint}")
    failure.errno = error.errno
    return failure


def explained(path: str, doing: str) -> _Explained:
    """Turn an `OSError` inside into a `StoreWriteError` that names the file.

    Args:
        path: the file.
        doing: the attempted action, as in "could not be {doing}".
    """
    return _Explained(path, doing)


def write_all(descriptor: int, data: bytes | npt.NDArray[np.uint8], offset: int) -> None:
    """Write all of `data` at an offset, in as many calls as needed."""
    raw = data if isinstance(data, bytes) else data.data
    done = os.pwrite(descriptor, raw, offset) if len(data) <= WRITE_BYTES else 0
    if done == len(data):  # without a view: this is done for each message
        return
    view, offset = memoryview(raw)[done:], offset + done
    while len(view):
        written = os.pwrite(descriptor, view[:WRITE_BYTES], offset)
        view, offset = view[written:], offset + written


def start_write_back(descriptor: int, offset: int, size: int) -> None:
    """Ask the system to start writing bytes of a file to disk, if it supports that (Linux).

    This guarantees nothing: a caller that needs the bytes on disk still flushes the file, and
    waits less. Errors are reported by that flush, not here.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


def replace_file(path: str, data: bytes) -> None:
    """Replace a file durably: temporary name, flush, rename, flush of the folder.

    Raises:
        StoreWriteError: the file could not be written; the old one is untouched.
    """
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with explained(path, "written"):
        descriptor = os.open(temporary, flags, FILE_MODE)
        try:
            write_all(descriptor, data, 0)
            os.fsync(descriptor)
        except OSError as error:
            if error.errno in NO_ROOM:
                with suppress(OSError):
                    os.unlink(temporary)  # it would keep the last room
            raise
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def remove_file(path: str) -> bool:
    """Remove a file durably; return whether it existed."""
    with explained(path, "removed"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
    sync_folder(os.path.dirname(path))
    return True


def make_folder(path: str) -> None:
    """Create a folder and its parents durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path.rstrip("/"))
    make_folder(above)
    add_folder(path)
    sync_folder(above)


def add_folder(path: str) -> bool:
    """Create one folder, not yet durably; return whether it is new."""
    with explained(path, "made"):
        try:
            os.mkdir(path, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
    return True


def sync_folder(path: str) -> None:
    """Flush the names in a folder to disk."""
    with explained(path, "flushed"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_data(descriptor: int) -> None:
    """Flush the bytes of a file; if that fails, forget those that are in memory only.

    After an error, Linux takes pages that it could not write for clean: a later start would read
    them, flush them without an error, and rely on what no disk has.

    Raises:
        OSError: the flush failed.
    """
    try:
        os.fdatasync(descriptor)
    except OSError:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        raise


def sync_file(path: str) -> None:
    """Flush the bytes of a file to disk."""
    with explained(path, "flushed"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_data(descriptor)
        finally:
            os.close(descriptor)


_CHUNK: Final = 4 << 20


def written_begin(path: str, start: int) -> int | None:
    """Return the first nonzero byte of a file, from an offset on; None if all are zeros.

    Raises:
        StoreWriteError: the file could not be read.
    """
    with closing(_written_parts(path, start)) as parts:
        for at, data in parts:
            return at + int((data != 0).argmax())
    return None


def written_end(path: str, start: int) -> int | None:
    """Return one past the last nonzero byte of a file, from an offset on; None if all are zeros.

    Raises:
        StoreWriteError: the file could not be read.
    """
    last = None
    for at, data in _written_parts(path, start):
        last = at + int(np.flatnonzero(data)[-1]) + 1
    return last


def _written_parts(
    path: str, start: int
) -> Generator[tuple[int, npt.NDArray[np.uint8]], None, None]:
    """Yield the parts of a file that are not all zeros, and where they are."""
    with explained(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for at, count in _data_ranges(descriptor, start, os.fstat(descriptor).st_size):
                data = np.frombuffer(os.pread(descriptor, count, at), np.uint8)
                if data.any():
                    yield at, data
        finally:
            os.close(descriptor)


def wipe(path: str, start: int, end: int) -> None:
    """Write zeros over a range of a file, and flush it. Holes stay: a full disk has room for this.

    The file keeps its length at every moment, so a crash leaves no file that is too short.

    Raises:
        StoreWriteError: the file could not be written or flushed.
    """
    zeros = memoryview(bytes(WRITE_BYTES))
    with explained(path, "wiped"):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for at, count in _data_ranges(descriptor, start, end):
                while count:
                    done = os.pwrite(descriptor, zeros[:count], at)
                    at, count = at + done, count - done
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _data_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return where a range of a file is not a hole: offset and length of chunks, in order.

    All of them before any is read: what was reserved counts as a hole until it is in the page
    cache, and the system reads ahead. Once one chunk was read, the next would be data.
    """
    found = []
    at = _next_data(descriptor, start) if start < end else None
    while at is not None and at < end:
        stop = min(os.lseek(descriptor, at, os.SEEK_HOLE), at + _CHUNK, end)
        found.append((at, stop - at))
        at = _next_data(descriptor, stop)
    return found


def solid_end(descriptor: int, size: int) -> int | None:
    """Return where a file's only hole begins, which reaches to its end.

    Return None if data follows it, or if the file system cannot say.

    Args:
        descriptor: an open file.
        size: its size, which is returned if it has no hole.
    """
    try:
        end = os.lseek(descriptor, 0, os.SEEK_HOLE)
        return end if end >= size or _next_data(descriptor, end) is None else None
    except OSError:
        return None


def _next_data(descriptor: int, at: int) -> int | None:
    """Return the first byte at or after another that is not in a hole; None if there is none."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
