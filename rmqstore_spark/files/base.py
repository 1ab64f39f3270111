"""The interface of a file system: all reading of files goes through it.

It has two implementations: `LocalFiles` (plain `preadv`) and `FsspecFiles` (everything else).
Tests wrap them in a third one to inject faults. Both translate errors as `translated` does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

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
