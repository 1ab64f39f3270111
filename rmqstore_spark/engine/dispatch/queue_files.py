"""The files of the ConsumeQueues: reads, writes, flushes and wipes bytes of a queue.

    consumequeue/{topic}/{queueId}/{20 digits}      files of one size, named by byte offset

The files are created at full length, and sparse. A position is a byte of a queue, counted from the
queue's entry 0.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import numpy as np

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    add_folder,
    explained,
    explanation,
    make_folder,
    sync_file,
    sync_folder,
    write_all,
    written_end,
)
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.files.systems.reads import cached_bytes
from rmqstore_spark.layout.constants import is_safe_folder_name
from rmqstore_spark.layout.queues.format import QueueFormat
from rmqstore_spark.layout.spans import U1

_UNNAMED: Final = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0
_FLUSHED_AT_ONCE: Final = 16
_MANY: Final = 128
"""Files whose flushes, one after the other, take longer than threads are worth."""
_WIPED_AT_ONCE: Final = 1 << 16  # entries


class QueueFiles:
    """The files of a store's ConsumeQueues. Thread-safe, but each queue has one writer at a time.

    Args:
        folder: `<store>/consumequeue`.
        queue_format: the format of the files.
        file_size: bytes of a file.
        open_files: the most files that are kept open.

    Attributes:
        size: bytes of a file. It may change before the first call.
    """

    def __init__(
        self, folder: str, queue_format: QueueFormat, file_size: int, open_files: int
    ) -> None:
        self.size = file_size
        self._format = queue_format
        self._folder = folder
        self._lock = threading.Lock()
        self._handles: HandleCache[int] = HandleCache(os.close, open_files)
        self._last: dict[tuple[str, int], tuple[str, int]] = {}  # file written last, its start
        self._dirty: set[str] = set()
        self._new_folders: set[str] = set()

    def begin(self, at: int) -> int:
        """Return the position at which the file of a position begins."""
        return at // self.size * self.size

    def make_folder(self, topic: str, queue_id: int) -> None:
        """Create a queue's folder. The next flush makes its name durable, with all other new ones.

        Until then no checkpoint vouches for the queue, and recovery rebuilds it.
        """
        make_folder(self._folder)
        of_topic = os.path.join(self._folder, _checked(topic))
        with self._lock:
            for above, path in ((self._folder, of_topic), (of_topic, f"{of_topic}/{queue_id}")):
                if add_folder(path):
                    self._new_folders.add(above)

    def read(
        self, topic: str, queue_id: int, at: int, count: int, *, may_wait: bool = True
    ) -> bytes:
        """Read bytes of a queue: fewer if a file is missing or too short.

        Args:
            may_wait: wait for the disk, and for other threads, if need be.

        Raises:
            BlockingIOError: it would have to wait, and may not.
        """
        parts = []
        read = os.pread if may_wait else cached_bytes
        if not self._lock.acquire(blocking=may_wait):
            raise BlockingIOError
        try:
            while count > 0:
                start = self.begin(at)
                path, last = self._last.get((topic, queue_id), ("", -1))
                if last != start:
                    path = self._path(topic, queue_id, start)
                try:
                    handle = self._open(path, make=False)
                except FileNotFoundError:
                    break
                part = read(handle, min(count, start + self.size - at), at - start)
                if not part:
                    break
                parts.append(part)
                at, count = at + len(part), count - len(part)
        finally:
            self._lock.release()
        return b"".join(parts)

    def write(self, topic: str, queue_id: int, data: bytes | U1, at: int) -> None:
        """Write bytes of a queue, and create the files that are missing.

        Raises:
            StoreWriteError: the bytes could not be written; `errno` says why.
        """
        route, width = (topic, queue_id), self._format.size
        assert (at % width, len(data) % width) == (0, 0), (
            f"{len(data)} bytes at {at} of {topic}/{queue_id} are not whole entries"
        )
        with self._lock:
            while len(data):
                start = at // self.size * self.size
                path, last = self._last.get(route, ("", -1))
                if last != start:
                    path = self._path(topic, queue_id, start)
                    self._last[route] = path, start
                room = start + self.size - at
                part = data if len(data) <= room else data[:room]
                self._dirty.add(path)
                try:  # without a call of `explained`: this is done for each message
                    write_all(self._handles.get(path, self._make), part, at - start)
                except OSError as error:
                    if isinstance(error, StoreWriteError):
                        raise
                    raise explanation(error, path, "written") from error
                data, at = data[len(part) :], at + len(part)

    def flush(self) -> None:
        """Flush all entries that were written before this call, and the names of their files.

        Raises:
            StoreWriteError: the flush failed; nothing may be taken as flushed.
        """
        with self._lock:
            paths, self._dirty = self._dirty, set()
            folders, self._new_folders = self._new_folders, set()
        try:
            _flush_each(sync_file, paths)
            _flush_each(sync_folder, folders)
        except BaseException:
            with self._lock:
                self._dirty |= paths
                self._new_folders |= folders
            raise

    def trim(self, topic: str, queue_id: int, begin: int, end: int) -> int:
        """Wipe a queue's bytes from a position on, and remove files that hold nothing else.

        Args:
            topic, queue_id: the queue.
            begin: where the queue's first file begins. Earlier files are removed, too.
            end: where the queue ends.

        Returns:
            The number of wiped entries that named messages.
        """
        folder = os.path.dirname(self._path(topic, queue_id, 0))
        starts = [segment_start(name) for name in os.listdir(folder)]
        wiped = 0
        with self._lock:
            for start in sorted(start for start in starts if start is not None):
                path = os.path.join(folder, f"{start:020}")
                if start + self.size <= begin:
                    self._remove(path)  # left from before the queue was rebuilt
                    continue
                if start + self.size <= end:
                    continue
                wiped += self._wipe(path, max(0, end - start))
                if start > end or (start == end and start != begin):
                    self._remove(path)
        return wiped

    def remove(self, topic: str, queue_id: int, start: int, *, units: bool = False) -> None:
        """Remove one file of a queue, unless it is gone. The next flush makes that durable.

        Args:
            units: remove a file of extension units instead, which only a broker writes.

        Raises:
            StoreWriteError: the file could not be removed.
        """
        with self._lock:
            _unless_gone(self._remove, self._path(topic, queue_id, start, units=units))

    def starts(self, topic: str, queue_id: int, *, units: bool = False) -> list[int]:
        """Return the positions at which the queue's files begin, ascending; none without a folder.

        Args:
            units: look at the files of extension units instead.
        """
        folder = os.path.dirname(self._path(topic, queue_id, 0, units=units))
        with suppress(FileNotFoundError):
            found = (segment_start(name) for name in os.listdir(folder))
            return sorted(start for start in found if start is not None)
        return []

    def drop(self, queues: Collection[tuple[str, int | None]]) -> None:
        """Remove the files of queues, and a broker's extension units for them.

        Args:
            queues: topic and queueId of each; None for all queues of the topic.
        """
        parents = set[str]()
        with self._lock:
            gone = set(queues)
            for route in [each for each in self._last if each in gone or (each[0], None) in gone]:
                del self._last[route]
            for topic, queue_id in queues:
                below = () if queue_id is None else (str(queue_id),)
                for kind in (self._folder, f"{self._folder}_ext"):
                    folder = os.path.join(kind, _checked(topic), *below)
                    parents.add(os.path.dirname(folder))
                    self._handles.drop_below(folder)
                    with explained(folder, "removed"), suppress(FileNotFoundError):
                        shutil.rmtree(folder)
            for parent in sorted(parents):
                if os.path.isdir(parent):
                    sync_folder(parent)

    def close(self) -> None:
        """Close all files, without flushing them."""
        with self._lock:
            self._handles.close()

    # ---- parts, which need the lock --------------------------------------------------------------

    def _path(self, topic: str, queue_id: int, start: int, *, units: bool = False) -> str:
        kind = f"{self._folder}_ext" if units else self._folder
        return os.path.join(kind, _checked(topic), str(queue_id), f"{start:020}")

    def _open(self, path: str, *, make: bool) -> int:
        return self._handles.get(path, self._make if make else _open_existing)

    def _make(self, path: str) -> int:
        """Open a file, which is as long as it must be: a broker does not start beside others."""
        folder = os.path.dirname(path)
        descriptor = _new_or_existing(path, folder)
        try:
            found = os.fstat(descriptor)
            if found.st_size < self.size:
                os.ftruncate(descriptor, self.size)
                self._new_folders.add(folder)
            if not found.st_nlink:  # it gets its name with its length
                # Python follows the link only with `src_dir_fd`, which an absolute path ignores.
                source = f"/proc/self/fd/{descriptor}"
                os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _remove(self, path: str) -> None:
        self._handles.drop(path)
        with explained(path, "removed"):
            os.unlink(path)
        self._dirty.discard(path)
        self._new_folders.add(os.path.dirname(path))

    def _wipe(self, path: str, within: int) -> int:
        """Zero a file from a byte on. Return the number of entries that were written there."""
        last = written_end(path, within)
        handle = self._open(path, make=True)  # lengthens a file that is too short
        width = self._format.size
        wiped, end = 0, self._format.slot_from(last or 0) * width  # an entry can end in zeros
        with explained(path, "wiped"):
            while within < end:
                count = min(_WIPED_AT_ONCE * width, end - within)
                data = os.pread(handle, count, within)
                if not data:
                    break
                raw = np.frombuffer(data, np.uint8)
                entries = self._format.decode(raw)
                wiped += int(np.count_nonzero(self._format.is_written(entries)))
                write_all(handle, np.zeros_like(raw), within)
                self._dirty.add(path)
                within += len(raw)
        return wiped


def _checked(topic: str) -> str:
    if not is_safe_folder_name(topic):
        raise StoreWriteError(
            f"topic name {topic!r} cannot be the name of a folder: the topic has no queue on disk."
        )
    return topic


def _new_or_existing(path: str, folder: str) -> int:
    """Open a file; if there is none, make one without a name, where the system can do that."""
    with suppress(FileNotFoundError):
        return _open_existing(path)
    if _UNNAMED:
        with suppress(OSError):  # the file system cannot, or the folder is missing
            return os.open(folder, os.O_RDWR | _UNNAMED | os.O_CLOEXEC, FILE_MODE)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, FILE_MODE)


def _open_existing(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _flush_each(flush: Callable[[str], None], paths: Collection[str]) -> None:
    """Flush files or folders. A file system writes its journal once for all that wait for it."""
    if len(paths) < _MANY:
        for path in sorted(paths):
            _unless_gone(flush, path)
        return
    with ThreadPoolExecutor(_FLUSHED_AT_ONCE, "rmqstore-flush-queues") as threads:
        for _ in threads.map(lambda path: _unless_gone(flush, path), sorted(paths)):
            pass


def _unless_gone(work: Callable[[str], None], path: str) -> None:
    """Flush or remove a file or folder, unless its topic was deleted in the meantime."""
    try:
        work(path)
    except StoreWriteError as error:
        if error.errno != errno.ENOENT:
            raise
