"""The interface of a file system: all reading of files goes through it.

It has three implementations: `LocalFiles` (plain `preadv`), `EndpointFiles` of the client (a store
process) and `FsspecFiles` (everything else). Tests wrap them in another one to inject faults. The
first and the last translate errors as `translated` does, and keep their open files in a
`HandleCache`.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import RmqStoreError, StoreAccessError

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]

# A dangling link, a loop of links, or a name too long for the disk holds no data either.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


class FileInfo(NamedTuple):
    """One entry of a folder.

    Attributes:
        name: last part of the path.
        size: bytes; 0 for a folder, -1 if the listing was asked to leave sizes out.
        is_dir: whether it is a folder, or a link to one.
        mtime_ms: time of the last change in milliseconds since the epoch, -1 if unknown.
        is_link: whether it is a symbolic link; the other fields then describe its target.
    """

    name: str
    size: int
    is_dir: bool
    mtime_ms: int
    is_link: bool = False


Listing: TypeAlias = list[FileInfo]


class Skipped(NamedTuple):
    """A file or folder of a store that was skipped, and the reason."""

    path: str
    reason: str


class FileRange(NamedTuple):
    """A range of a file, in bytes."""

    path: str
    offset: int
    length: int


class Files(Protocol):
    """Read-only access to the files of a store, by path.

    An object serves one reading thread. It can be pickled, without its open handles, and used
    after a fork. Every method raises `FileNotFoundError` if the path does not exist,
    `StoreAccessError` if permission is missing, and `RmqStoreError` for any other failure of the
    file system. Each error names the path.

    Attributes:
        place: names the file system; a path means the same file wherever this is the same.
        is_local: whether paths are paths of this machine's own file system.
        max_gap: the widest gap, in bytes, that is cheaper to read than to skip with a second
            request.
        max_waste: how many unwanted bytes may be read per byte that was requested.
        block: bytes that take hardly longer to read than one byte.
        stretch: how many bytes one call should read, when all bytes of a file are read in order.
    """

    place: str
    is_local: bool
    max_gap: int
    max_waste: int
    block: int
    stretch: int

    @property
    def reads_together(self) -> bool:
        """Whether `read_many` takes hardly longer than one `read`."""
        ...

    @property
    def lists_trees(self) -> bool:
        """Whether `walk` lists a whole tree with one request, so that depth costs nothing."""
        ...

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        """Return the entries of a folder, sorted by name.

        Args:
            path: the folder.
            sizes: False leaves `size` and `mtime_ms` at -1 if that saves a call per entry.
        """
        ...

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """Yield all folders from `path` down to `depth` levels below it, with their entries.

        Cheaper than one `list` per folder if one request can list a whole tree. Sizes may be -1.
        Links to folders are followed, never below `depth`.

        Args:
            path: the folder to begin with.
            depth: 0 lists `path` alone.
            on_error: called with the relative path of a folder that could not be listed, and the
                error.

        Yields:
            The path of the folder relative to `path` ("" for `path`), and its entries by name.
        """
        ...

    def resolve(self, path: str) -> str:
        """Return the path with all links resolved, or the path itself without links."""
        ...

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        ...

    def used_size(self, path: str) -> int | None:
        """Return how many of a file's first bytes may hold something: the others are zeros.

        None if that is unknown: if finding it out took reading, or the file system cannot say.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists; False also if permission is missing."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer than `length` only at the end of the file."""
        ...

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` from a range and return the bytes read; fewer only at the file's end."""
        ...

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file into `out`, one after the other.

        Args:
            path: the file.
            offsets: i8[n], where each range starts, ascending.
            lengths: i8[n], bytes of each, under 2 GiB.
            out: u1[sum of lengths or more].

        Returns:
            How many ranges were read in full: n, or the number of the first one that was cut short.
        """
        ...

    def read_many(self, ranges: Sequence[FileRange]) -> Sequence[bytes]:
        """Read ranges of several files, each as `read` does, in as few requests as possible."""
        ...

    def close(self) -> None:
        """Close all handles. The object remains usable and opens files again when needed."""
        ...


def walk_by_folder(
    files: Files, path: str, depth: int, on_error: Callable[[str, Exception], None]
) -> Iterator[tuple[str, Listing]]:
    """Yield as `Files.walk` does, with one `Files.list` per folder.

    The depth is bounded, so a loop of links ends.
    """
    todo = [("", 0)]
    while todo:
        relative, level = todo.pop()
        try:
            listing = files.list(join(path, relative) if relative else path, sizes=False)
        except (OSError, RmqStoreError) as error:
            on_error(relative, error)
            continue
        yield relative, listing
        if level < depth:
            todo += [
                (f"{relative}/{info.name}" if relative else info.name, level + 1)
                for info in reversed(listing)
                if info.is_dir
            ]


def listed_by_folder(
    entries: Iterable[tuple[str, FileInfo]], depth: int
) -> Iterator[tuple[str, Listing]]:
    """Yield as `Files.walk` does, from the listing of a whole tree.

    Args:
        entries: what lies below the first folder, each with its path relative to that. A folder may
            occur as part of a path alone.
        depth: levels of folders below the first one; what lies deeper is left out.
    """
    folders: dict[str, dict[str, FileInfo]] = {"": {}}
    for path, info in entries:
        parts = path.split("/", depth + 1)
        folder = ""
        for part in parts[:-1]:
            folders.setdefault(folder, {}).setdefault(part, FileInfo(part, 0, True, -1))
            folder = f"{folder}/{part}" if folder else part
        if len(parts) <= depth + 1:
            listed = folders.setdefault(folder, {})
            if info.name and not (info.name in listed and info.is_dir):
                listed[info.name] = info
                if info.is_dir and len(parts) <= depth:
                    folders.setdefault(f"{folder}/{info.name}" if folder else info.name, {})
    for folder in sorted(folders):
        listed = folders[folder]
        yield folder, [listed[name] for name in sorted(listed)]


def join(folder: str, *names: str) -> str:
    """Join a folder and names to a path. The root of an archive is the empty string."""
    parts = [folder.rstrip("/") if folder != "/" else ""] if folder else []
    return "/".join([*parts, *names])


def translated(error: OSError, path: str) -> Exception:
    """Return the error to raise instead of an `OSError` on `path`.

    Returns:
        `FileNotFoundError`, `StoreAccessError` or `RmqStoreError`, with the path and a remedy.
    """
    if isinstance(error, FileNotFoundError) or error.errno in _MISSING:
        return FileNotFoundError(errno.ENOENT, error.strerror or "no such file or folder", path)
    if isinstance(error, PermissionError) or error.errno in _DENIED:
        return StoreAccessError(
            f"no permission to read {path}{_who()}. Let that user read the store's files and "
            "enter its folders (r on files, r-x on folders)."
        )
    if error.errno in _TOO_MANY:
        return RmqStoreError(
            f"too many open files: {path} could not be opened. Raise the limit (ulimit -n)."
        )
    return RmqStoreError(
        f"{path} could not be read: {error.strerror or error}. Check its disk or mount."
    )


def _who() -> str:
    """Return this process's user, if the platform has one."""
    return f" for user id {os.geteuid()}" if hasattr(os, "geteuid") else ""


def most_open_files(share: int, least: int, most: int) -> int:
    """Return how many files something may hold open, of those that the process may.

    Args:
        share: one in so many.
        least: as many in any case.
        most: no more than that.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    return max(least, min(limit // share, most))


H = TypeVar("H")


class HandleCache(Generic[H]):
    """An LRU cache of open handles by path. Not locked: use one object per thread.

    Args:
        close_handle: closes a handle.
        capacity: maximum number of open handles; or returns it, whenever one is opened.
    """

    def __init__(
        self, close_handle: Callable[[H], None], capacity: int | Callable[[], int]
    ) -> None:
        self._handles: OrderedDict[str, H] = OrderedDict()
        self._names: dict[str, set[str]] = {}
        if isinstance(capacity, int) and capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._close = close_handle
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._handles)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # modules are gone by then, and the system closes all files
            self.close()

    def get(self, path: str, open_handle: Callable[[str], H]) -> H:
        """Return the handle of a path, and open it if needed."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        most = self._capacity if isinstance(self._capacity, int) else self._capacity()
        self._shrink(most - 1)
        try:
            handle = open_handle(path)
        except OSError as error:
            # The limit applies to the whole process: close the handles held here, then try again.
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._handles:
                raise
            self._shrink(0)
            handle = open_handle(path)
        self._handles[path] = handle
        folder, _, name = path.rpartition("/")
        self._names.setdefault(folder, set()).add(name)
        return handle

    def opened_in(self, folder: str) -> set[str]:
        """Return the names of a folder's files whose handles are open."""
        return set(self._names.get(folder.rstrip("/"), ()))

    def peek(self, path: str) -> H | None:
        """Return the handle of a path if it is open, without counting this as a use."""
        return self._handles.get(path)

    def drop(self, path: str) -> None:
        """Close the handle of a path, if it is open."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._forget_name(path)
            self._close(handle)

    def drop_below(self, folder: str) -> None:
        """Close the handles of all paths in a folder, and in those below it."""
        for path in [each for each in self._handles if each.startswith(f"{folder}/")]:
            self.drop(path)

    def forget(self) -> None:
        """Drop all handles without closing them: in a forked child they belong to the parent."""
        self._handles.clear()
        self._names.clear()

    def close(self) -> None:
        """Close all handles."""
        self._shrink(0)

    def _shrink(self, keep: int) -> None:
        """Close the least recently used handles until at most `keep` are left."""
        while len(self._handles) > keep:
            path, handle = self._handles.popitem(last=False)
            self._forget_name(path)
            self._close(handle)

    def _forget_name(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        names = self._names[folder]
        names.discard(name)
        if not names:
            del self._names[folder]
