"""Gives readers access to the files of a store, and to nothing outside it.

Each component of a path is opened relative to the folder before it, and links are not followed.
The store and its folders may themselves be links (`files.links`), resolved once, at the start.
Only a broker's files are shown, and which topics were deleted (`rmqstore/deleted.json`). Those of a
store that this process writes do not include `abort`: readers see a store that was closed, since
they need not know who writes it. Bytes of the log past its published end read as zeros, as in a
segment that has not been written yet.

Of a store that another process writes, `abort` is shown, and `lock` as long as a process holds it.
So readers know what they would know beside its files: whether it is closed, written, or was killed,
and by `rmqstore/flushed`, whether its log has lost its end.

The log of a member of a DLedger group is shown as it is: readers must know that entries have
headers, and where its older segments end. They find its end themselves, by its `checkpoint`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.directory import DLEDGER_PREFIX, DLedgerLog
from rmqstore_spark.files.links import LINKABLE
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.files.names import DELETED_NAME, FLUSH_MARK_NAME, GUARD_NAME, OWN_FOLDER
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.reads import PLAIN, DiskReads
from rmqstore_spark.reader.log.end import committed_end, is_locked
from rmqstore_spark.wire.protocol import DENIED, NOT_FOUND, UNAVAILABLE
from rmqstore_spark.wire.reading import FileEntry

_LOG: Final = "commitlog"
_FOLDERS: Final = frozenset(LINKABLE)
_CONFIG: Final = "config"
_CONFIGURATIONS: Final = (".json", ".json.bak")
_MESSAGES: Final = _FOLDERS - {_CONFIG}
_CHECKPOINT: Final = "checkpoint"
_FILES: Final = frozenset({_CHECKPOINT})
_ENTRIES: Final = frozenset({"data", "index"})  # of a member of a DLedger group
_ABORT: Final = "abort"
_LOCK: Final = "lock"
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
_MOST_PARTS: Final = 8
_FARTHEST: Final = (1 << 63) - 1
_MOST_ENTRIES: Final = 500_000
_AT_ONCE: Final = 1000  # folder entries between two calls of `between`

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ViewError(Exception):
    """The requested file or folder is not available to readers.

    Args:
        status: a status of `wire.protocol`.
        message: the reason.
    """

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


class StoreView:
    """The files of one store, as readers see them.

    Args:
        root: the store directory.
        log_folders: folders of the CommitLog, shown together as `commitlog`.
        published_end: returns the physical offset up to which records can be read.
        reads: how the bytes of files are read.
    """

    def __init__(
        self,
        root: str,
        log_folders: Sequence[str],
        published_end: Callable[[], int],
        reads: DiskReads = PLAIN,
    ) -> None:
        self._root = os.path.realpath(root)
        self._logs = tuple(map(os.path.realpath, log_folders))
        self._tops: dict[str, tuple[str, ...]] = {
            name: (os.path.realpath(os.path.join(root, name)),) for name in LINKABLE
        }
        self._tops[_LOG] = self._logs
        self._log_names = {_LOG}
        self._published_end = published_end
        self._reads = reads

    def entry(self, path: str) -> FileEntry:
        """Return the file or folder at a path.

        Raises:
            ViewError: it does not exist, or is not shown.
        """
        parts = _parts(path)
        if not parts:
            return FileEntry("", 0, True, -1)
        for base in self._bases(parts[:-1]):
            with self._folder(base, parts[:-1], path) as folder:
                found = _described(folder, parts[-1], path)
            if found is not None and self._shows(parts, found.is_dir):
                return found
        raise _missing(path)

    def walk(self, path: str, depth: int, between: Callable[[], object]) -> list[FileEntry]:
        """List a folder, and what is below it, down to a number of levels below its own entries.

        Args:
            path: the folder.
            depth: the number of levels.
            between: called from time to time; an error that it raises ends the listing.

        Raises:
            ViewError: the folder does not exist, is not shown, or holds too many entries.
        """
        found: list[FileEntry] = []
        todo = [(_parts(path), depth)]
        while todo:
            parts, left = todo.pop()
            try:
                entries = list(self._entries(parts, between))
            except ViewError:
                if not found:
                    raise
                continue  # removed since its parent was listed
            found += entries
            if len(found) > _MOST_ENTRIES:
                raise ViewError(DENIED, f"{path!r} holds more than {_MOST_ENTRIES} files.")
            if left:
                todo += [(entry.path.split("/"), left - 1) for entry in entries if entry.is_dir]
        return found

    def _entries(self, parts: list[str], between: Callable[[], object]) -> Iterator[FileEntry]:
        path = "/".join(parts)
        told: set[str] = set()
        for base in self._bases(parts):
            with self._folder(base, parts, path) as folder:
                try:
                    names = sorted(os.listdir(folder))
                except OSError as error:
                    raise _unopened(path, error) from None
                if len(names) > _MOST_ENTRIES:
                    raise ViewError(DENIED, f"{path!r} holds more than {_MOST_ENTRIES} files.")
                for number, name in enumerate(names):
                    if number % _AT_ONCE == 0:
                        between()
                    entry = _described(folder, name, "/".join([*parts, name]))
                    if entry is None or name in told:
                        continue
                    if self._shows([*parts, name], entry.is_dir):
                        told.add(name)
                        yield entry
        if not parts and _LOG not in told and any(map(os.path.isdir, self._logs)):
            yield FileEntry(_LOG, 0, True, 0)  # it lies outside the store directory

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Open a file, and close it at the end of the context.

        Raises:
            ViewError: the file does not exist, or is not shown.
        """
        parts = _parts(path)
        if not parts or not self._shows(parts, False):
            raise _missing(path)
        descriptor = self._opened(parts, path)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _missing(path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _opened(self, parts: list[str], path: str) -> int:
        for base in self._bases(parts[:-1]):
            with self._folder(base, parts[:-1], path) as folder:
                try:
                    return os.open(parts[-1], _FILE_FLAGS, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise _unopened(path, error) from None
        raise _missing(path)

    def read(
        self,
        path: str,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.int64]:
        """Read ranges of a file into a buffer, without gaps between them.

        Args:
            path, descriptor: the file.
            offsets, lengths: the ranges, not negative.
            out: the buffer, as long as all ranges together.

        Returns:
            The number of bytes read of each range. It is less than the length only where the file
            ends; the next range then follows directly in `out`.
        """
        # Taken before the read: all bytes below it are written.
        end = self._end_in(path, int((offsets + lengths).max(initial=0)))
        size = os.fstat(descriptor).st_size
        there = np.clip(size - offsets, 0, lengths.astype(np.int64))
        wanted = there.astype(np.int32)
        done = self._reads.spans(descriptor, offsets, wanted, out[: int(there.sum())])
        if done < len(offsets):
            raise ViewError(NOT_FOUND, f"{path!r} was cut while it was read.")
        if end is not None:
            _blank(out, offsets, there, end)
        return there

    def is_as_on_disk(self, path: str, descriptor: int, offset: int, length: int) -> bool:
        """Return whether a range can be sent from the file: readers may see all of its bytes.

        If so, it counts as read. False also if that would read it in another way than is wanted, as
        where the page cache is spared and does not have it.

        Args:
            path, descriptor: the file.
            offset, length: the range.
        """
        if offset + length > os.fstat(descriptor).st_size:
            return False
        end = self._end_in(path, offset + length)
        if end is not None and offset + length > end:
            return False
        return self._reads.may_send(descriptor, length, offset)

    def _end_in(self, path: str, reach: int) -> int | None:
        """Return the offset up to which readers may see a file; None if it is not of the log.

        Args:
            path: the file.
            reach: how far in the file they want to read.
        """
        folder, _, name = path.rpartition("/")
        start = segment_start(name) if folder in self._log_names else None
        return None if start is None else self._end_of_log(start + reach) - start

    def _end_of_log(self, reach: int) -> int:  # noqa: ARG002 - one that is known need not be read
        """Return the physical offset up to which readers may see the log.

        Args:
            reach: how far they want to read: if they may, the end can be farther away.
        """
        return self._published_end()

    def _shows(self, parts: list[str], is_dir: bool) -> bool:
        """Return whether readers see a file or folder."""
        # A reader finds out by it which records are rightly in no queue.
        if parts == ([OWN_FOLDER] if is_dir else [OWN_FOLDER, DELETED_NAME]):
            return True
        top = parts[0] in _FOLDERS if is_dir or len(parts) > 1 else parts[0] in _FILES
        if parts[0] == _CONFIG and not is_dir and not parts[-1].endswith(_CONFIGURATIONS):
            return False  # RocketMQ's accounts may be there, and keys of TLS
        return top and not parts[-1].startswith(GUARD_NAME)

    def _bases(self, parts: list[str]) -> tuple[str, ...]:
        """Return the folders of this machine that a folder of the store can lie in."""
        return self._tops.get(parts[0], (self._root,)) if parts else (self._root,)

    @contextmanager
    def _folder(self, base: str, parts: list[str], path: str) -> Iterator[int]:
        """Open a folder of the store, and close it at the end of the context."""
        if parts and not self._shows(parts, True):
            raise _missing(path)
        with ExitStack() as opened:
            try:
                folder = os.open(base, _FOLDER_FLAGS)
                opened.callback(os.close, folder)
                for part in parts[1:] if parts and parts[0] in self._tops else parts:
                    folder = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
                    opened.callback(os.close, folder)
            except OSError as error:
                raise _unopened(path, error) from None
            yield folder


class ForeignView(StoreView):
    """The files of a store that another process writes, or that nobody does.

    Args:
        root, log_folders, reads: as for `StoreView`.
    """

    def __init__(self, root: str, log_folders: Sequence[str], reads: DiskReads) -> None:
        super().__init__(root, log_folders, lambda: _FARTHEST, reads)

    def _shows(self, parts: list[str], is_dir: bool) -> bool:
        if parts == [_LOCK]:
            return not is_dir and is_locked(LocalFiles(), self._root)
        if parts == [_ABORT]:
            return not is_dir
        # A reader finds out by it whether a log that nobody writes has lost its end.
        if parts == [OWN_FOLDER, FLUSH_MARK_NAME]:
            return not is_dir
        is_dledger = parts[0].startswith(DLEDGER_PREFIX) and (is_dir or len(parts) > 1)
        return is_dledger or super()._shows(parts, is_dir)


class MemberView(StoreView):
    """The files of a store that this process writes as a member of a DLedger group.

    Readers see that it is open. Its queues follow its log, and may not have begun.

    Args:
        root: the store directory.
        data: the folder of the member's segments.
        published_end: returns the physical offset up to which its log goes into queues.
    """

    def __init__(self, root: str, data: str, published_end: Callable[[], int]) -> None:
        super().__init__(root, [os.path.join(root, _LOG)], published_end)
        folder = os.path.dirname(data)
        self._member = os.path.basename(folder)
        self._entries_at = DLedgerLog.within(folder)
        self._log_names.add(f"{self._member}/data")

    def _end_of_log(self, reach: int) -> int:
        # The checkpoint is ahead of the published end, and the last entry that it names is read.
        end = self._published_end()
        if reach <= end:
            return end
        files = LocalFiles()
        try:
            data = Segments.load(files, [self._entries_at.data])
            return max(end, committed_end(files, self._entries_at, data))
        except (RmqStoreError, FileNotFoundError):
            return end  # readers find the damage in the same files
        finally:
            files.close()

    def _shows(self, parts: list[str], is_dir: bool) -> bool:
        if parts in ([_ABORT], [_LOCK]):
            return not is_dir
        if parts[0] != self._member:
            return super()._shows(parts, is_dir)
        if is_dir:
            return len(parts) == 1 or (len(parts) == 2 and parts[1] in _ENTRIES)
        return parts[1:] == [_CHECKPOINT] or (len(parts) == 3 and parts[1] in _ENTRIES)


def _parts(path: str) -> list[str]:
    """Split a path into its components.

    Raises:
        ViewError: a component could lead out of the store.
    """
    if not path:
        return []
    parts = path.split("/")
    if len(parts) > _MOST_PARTS or any(
        part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts
    ):
        raise ViewError(DENIED, f"{path[:200]!r} is not a path within a store.")
    return parts


def _described(folder: int, name: str, path: str) -> FileEntry | None:
    """Return an entry of a folder; None if it is not a plain file or folder, or its name not UTF-8.

    Raises:
        ViewError: it is a link that may lead to messages.
    """
    with suppress(OSError, UnicodeEncodeError):
        path.encode("utf-8")
        status = os.stat(name, dir_fd=folder, follow_symlinks=path in _FOLDERS)
        top = path.partition("/")[0]
        has_messages = top in _MESSAGES or top.startswith(DLEDGER_PREFIX)
        if stat.S_ISLNK(status.st_mode) and has_messages:
            raise ViewError(
                DENIED,
                f"{path!r} is a link, and a store process follows only those of a store's own "
                f"folders ({', '.join(LINKABLE)}): messages would be missing. Read the store on "
                "the machine that has its files, or move the link's target into it.",
            )
        is_dir = stat.S_ISDIR(status.st_mode)
        if is_dir or stat.S_ISREG(status.st_mode):
            size = 0 if is_dir else status.st_size
            return FileEntry(path, size, is_dir, max(status.st_mtime_ns // 1_000_000, 0))
    return None


def _unopened(path: str, error: OSError) -> ViewError:
    """Return the error for a path that could not be opened: not every cause means it is missing."""
    if error.errno in _TRANSIENT:
        return ViewError(
            UNAVAILABLE, f"The store process could not open {path[:200]!r}: {error.strerror}."
        )
    return _missing(path)


def _missing(path: str) -> ViewError:
    return ViewError(NOT_FOUND, f"The store process does not serve {path[:200]!r}.")


def _blank(
    out: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    end: int,
) -> None:
    """Zero the bytes that were read past a position of the file."""
    begins = np.cumsum(lengths) - lengths
    for number in np.flatnonzero(offsets + lengths > end).tolist():
        first = max(0, end - int(offsets[number]))
        begin = int(begins[number])
        out[begin + first : begin + int(lengths[number])] = 0
