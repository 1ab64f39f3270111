"""What the floors above ask of a file system: the one seam for reading files.

Two implementations: `LocalFiles` (plain `preadv`) and `FsspecFiles` (everything else). Tests put a
third in front of them to inject faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["FileInfo", "Files", "Int64Array", "Listing", "Skipped", "UInt8Array", "join"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]


class FileInfo(NamedTuple):
    """One entry of a folder.

    Attributes:
        name: last part of the path.
        size: bytes; 0 for a folder, -1 where the listing was asked to leave sizes out.
        is_dir: a folder, or a link to one.
        mtime_ms: time of the last change in milliseconds since the epoch, -1 where unknown.
        is_link: a symbolic link (what it points at is described by the other fields).
    """

    name: str
    size: int
    is_dir: bool
    mtime_ms: int
    is_link: bool = False


Listing: TypeAlias = list[FileInfo]


class Skipped(NamedTuple):
    """Something found in a store that is no part of it, and why it was passed over."""

    path: str
    reason: str


class Files(Protocol):
    """Read-only access to the files of a store, by path.

    One object serves one reading thread; it can be pickled (open handles stay behind) and used
    after a fork. Every method raises `FileNotFoundError` for what does not exist,
    `StoreAccessError` where permission is missing, and `RmqStoreError` for any other failure of
    the file system, each with the path in its text.

    Attributes:
        is_local: paths are paths of this machine's own file system.
        max_gap: reading on over a gap of so many bytes is cheaper than a second request.
        max_waste: how many bytes may be read for nothing, per byte that was asked for.
    """

    is_local: bool
    max_gap: int
    max_waste: int

    @property
    def lists_trees(self) -> bool:
        """Whether `walk` asks once for a whole tree, so that depth costs nothing."""
        ...

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        """Entries of a folder, sorted by name.

        Args:
            path: the folder.
            sizes: False leaves `size` and `mtime_ms` at -1, where that saves a call per entry.
        """
        ...

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """All folders from `path` down to `depth` levels below it, with their entries.

        Cheaper than `list` per folder where one request can list a whole tree. Sizes may be -1.
        Links to folders are entered as folders are, never below `depth`.

        Args:
            path: the folder to begin with.
            depth: 0 lists `path` alone.
            on_error: told of a folder (relative path) that could not be listed, and why.

        Yields:
            Path of the folder relative to `path` ("" for itself), and its entries by name.
        """
        ...

    def resolve(self, path: str) -> str:
        """The path with all links resolved (the path itself where there are no links)."""
        ...

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there (False also where it may not be looked at)."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a range; fewer than `length` only at the end of the file."""
        ...

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` from a range; returns how much, less than its size only at the file's end."""
        ...

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file one behind the other into `out`.

        Args:
            path: the file.
            offsets: i8[n], where each range starts, ascending.
            lengths: i8[n], bytes of each, under 2 GiB.
            out: u1[sum of lengths or more].

        Returns:
            How many ranges were read in full: n, or the number of the first one that ended early.
        """
        ...

    def close(self) -> None:
        """Close all handles. The object can still be used, and opens files anew."""
        ...


def join(folder: str, *names: str) -> str:
    """Put a path together. The root of an archive is the empty string."""
    parts = [folder.rstrip("/") if folder != "/" else ""] if folder else []
    return "/".join([*parts, *names])
