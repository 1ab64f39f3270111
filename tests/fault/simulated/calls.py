"""Records the calls of the operating system that change files below a folder, in their order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple
from unittest import mock

_FIRST: Final = 1 << 80
"""Inodes of files that were made meanwhile count from here."""


class Change(NamedTuple):
    """A file's bytes or size have changed.

    Attributes:
        inode: of the file.
        offset: of the bytes; the new size if `data` is None.
        data: None if only the size has changed.
    """

    inode: int
    offset: int
    data: bytes | None


class Named(NamedTuple):
    """A folder has a new name for an inode, or a name less (`inode` is 0)."""

    folder: int
    name: str
    inode: int


class Renamed(NamedTuple):
    """A name has moved; what had the new one has it no more."""

    folder: int
    name: str
    to_folder: int
    to_name: str


class Made(NamedTuple):
    """An inode was made."""

    inode: int
    is_folder: bool


class Flushed(NamedTuple):
    """All of an inode is on disk that was recorded before event number `begun`."""

    inode: int
    begun: int


class Said(NamedTuple):
    """What the program said, as of an operation that it began or has done."""

    words: tuple[Any, ...]


Event = Change | Named | Renamed | Made | Flushed | Said


class Calls:
    """A context manager: while it is open, calls below a folder are recorded.

    Args:
        root: the folder, an absolute path.

    Attributes:
        events: in the order in which they had their effect; flushes in that of their ends.
    """

    def __init__(self, root: str) -> None:
        self.events: list[Event] = []
        self._root = root
        self._inside = root + os.sep
        self._lock = threading.RLock()
        self._inodes: dict[int, int] = {}  # of descriptors
        self._made: dict[int, int] = {}  # ours, of the system's that may come again
        self._real = {name: getattr(os, name) for name in _WRAPPED}
        self._patches = ExitStack()

    def __enter__(self) -> Calls:
        for name, wrapper in _WRAPPED.items():
            self._patches.enter_context(mock.patch.object(os, name, self._bound(name, wrapper)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def say(self, *words: Any) -> None:
        """Record what the program says."""
        with self._lock:
            self.events.append(Said(words))

    def _bound(self, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        real = self._real[name]

        def call(*arguments: Any, **named: Any) -> Any:
            return wrapper(self, real, *arguments, **named)

        return call

    # ---- places -------------------------------------------------------------------------------

    def _place(self, path: Any, folder_descriptor: int | None = None) -> tuple[int, str] | None:
        """Return folder and name of a path; None if it is elsewhere."""
        name = os.fsdecode(path)
        if folder_descriptor is not None:
            folder = self._inodes.get(folder_descriptor)
            return None if folder is None else (folder, name)
        if not name.startswith(self._inside):
            return None
        above, _, last = name.rstrip(os.sep).rpartition(os.sep)
        return self._inode(os.stat(above)), last

    def _inode(self, status: os.stat_result) -> int:
        return self._made.get(status.st_ino, status.st_ino)

    def _make(self, status: os.stat_result, *, is_folder: bool = False) -> int:
        inode = self._made[status.st_ino] = _FIRST + len(self.events)
        self.events.append(Made(inode, is_folder))
        return inode

    # ---- calls --------------------------------------------------------------------------------

    def open(self, real: Any, path: Any, flags: int, *rest: Any, **named: Any) -> int:
        with self._lock:
            place = self._place(path, named.get("dir_fd"))
            if place is None and os.fsdecode(path) != self._root:
                return int(real(path, flags, *rest, **named))
            is_unnamed = flags & os.O_TMPFILE == os.O_TMPFILE
            was_there = is_unnamed or _exists(path, named.get("dir_fd"))
            descriptor = int(real(path, flags, *rest, **named))
            status = os.fstat(descriptor)
            inode = self._inode(status) if was_there and not is_unnamed else self._make(status)
            self._inodes[descriptor] = inode
            if not was_there and place is not None:
                self.events.append(Named(*place, inode))
            if flags & os.O_TRUNC and was_there:
                self.events.append(Change(inode, 0, None))
            return descriptor

    def close(self, real: Any, descriptor: int) -> None:
        with self._lock:
            self._inodes.pop(descriptor, None)
            real(descriptor)

    def pwrite(self, real: Any, descriptor: int, data: Any, offset: int) -> int:
        with self._lock:
            done = int(real(descriptor, data, offset))
            self._wrote(descriptor, bytes(memoryview(data).cast("B")[:done]), offset)
            return done

    def pwritev(self, real: Any, descriptor: int, parts: Any, offset: int, *rest: Any) -> int:
        with self._lock:
            done = int(real(descriptor, parts, offset, *rest))
            data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)[:done]
            self._wrote(descriptor, data, offset)
            return done

    def write(self, real: Any, descriptor: int, data: Any) -> int:
        with self._lock:
            if descriptor not in self._inodes:
                return int(real(descriptor, data))
            offset = os.lseek(descriptor, 0, os.SEEK_CUR)
            done = int(real(descriptor, data))
            self._wrote(descriptor, bytes(memoryview(data).cast("B")[:done]), offset)
            return done

    def sendfile(self, real: Any, target: int, source: int, offset: int, count: int) -> int:
        with self._lock:
            if target not in self._inodes:
                return int(real(target, source, offset, count))
            at = os.lseek(target, 0, os.SEEK_CUR)
            done = int(real(target, source, offset, count))
            self._wrote(target, os.pread(source, done, offset), at)
            return done

    def _wrote(self, descriptor: int, data: bytes, offset: int) -> None:
        if descriptor in self._inodes:
            self.events.append(Change(self._inodes[descriptor], offset, data))

    def ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        with self._lock:
            real(descriptor, size)
            if descriptor in self._inodes:
                self.events.append(Change(self._inodes[descriptor], size, None))

    def truncate(self, real: Any, path: Any, size: int) -> None:
        with self._lock:
            real(path, size)
            if self._place(path) is not None:
                self.events.append(Change(self._inode(os.stat(path)), size, None))

    def posix_fallocate(self, real: Any, descriptor: int, offset: int, size: int) -> None:
        with self._lock:
            before = os.fstat(descriptor).st_size
            real(descriptor, offset, size)
            if descriptor in self._inodes and offset + size > before:
                self.events.append(Change(self._inodes[descriptor], offset + size, None))

    def fsync(self, real: Any, descriptor: int) -> None:
        with self._lock:  # but not while it flushes: what is written meanwhile may be too late
            inode, begun = self._inodes.get(descriptor), len(self.events)
        real(descriptor)
        if inode is not None:
            with self._lock:
                self.events.append(Flushed(inode, begun))

    def rename(self, real: Any, source: Any, target: Any) -> None:
        with self._lock:
            old, new = self._place(source), self._place(target)
            real(source, target)
            assert (old is None) == (new is None), "names do not leave the folder"
            if old is not None and new is not None:
                self.events.append(Renamed(*old, *new))

    def link(self, real: Any, source: Any, target: Any, **named: Any) -> None:
        with self._lock:
            place = self._place(target)
            real(source, target, **named)
            if place is not None:
                self.events.append(Named(*place, self._inode(os.stat(target))))

    def unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            real(path, dir_fd=dir_fd)
            if place is not None:
                self.events.append(Named(*place, 0))

    def mkdir(self, real: Any, path: Any, *rest: Any) -> None:
        with self._lock:
            place = self._place(path)
            real(path, *rest)
            if place is not None:
                inode = self._make(os.stat(path), is_folder=True)
                self.events.append(Named(*place, inode))

    def symlink(self, _: Any, source: Any, target: Any) -> None:
        raise AssertionError(f"{source} and {target}: links of this kind are not played")


def _exists(path: Any, folder_descriptor: int | None) -> bool:
    try:
        os.stat(path, dir_fd=folder_descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_WRAPPED: Final[dict[str, Callable[..., Any]]] = {
    "open": Calls.open,
    "close": Calls.close,
    "pwrite": Calls.pwrite,
    "pwritev": Calls.pwritev,
    "write": Calls.write,
    "sendfile": Calls.sendfile,
    "ftruncate": Calls.ftruncate,
    "truncate": Calls.truncate,
    "posix_fallocate": Calls.posix_fallocate,
    "fsync": Calls.fsync,
    "fdatasync": Calls.fsync,
    "rename": Calls.rename,
    "replace": Calls.rename,
    "link": Calls.link,
    "unlink": Calls.unlink,
    "remove": Calls.unlink,
    "rmdir": Calls.unlink,
    "mkdir": Calls.mkdir,
    "symlink": Calls.symlink,
}
