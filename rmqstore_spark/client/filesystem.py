"""A read-only file system of fsspec for the files of a store that a process serves.

    Store.open("rmq://127.0.0.1:10921")

A path is the endpoint and a path in the store: `rmq://127.0.0.1:10921/config/topics.json`. One
request can ask for many ranges.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from fsspec.spec import AbstractFileSystem

from rmqstore_spark.client.link import Link
from rmqstore_spark.client.store_client import StoreClient
from rmqstore_spark.errors import RefusedError, RmqStoreError, StoreAccessError
from rmqstore_spark.wire.messages import (
    FileEntry,
    ListReply,
    PathRequest,
    RangesRequest,
    WalkRequest,
)
from rmqstore_spark.wire.protocol import DENIED, NOT_FOUND, Code

T = TypeVar("T")

_DEPTH: Final = 4
_MAX_READ: Final = 64 << 20


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The files that a store process gives to readers.

    Args:
        endpoint: the endpoint of the process; see `parse_endpoint`.
        options: options of `StoreClient`; any other is a TypeError.
    """

    protocol = ("rmq", "rmqs", "unix")
    root_marker = ""
    cachable = False  # a connection belongs to the code that opened the store
    takes_ranges = True
    """One request can hold many ranges; see `FsspecFiles`."""
    fills_buffers = True
    """It has `read_into`; see `FsspecFiles`."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        super().__init__()
        self.client = StoreClient(endpoint, **options)
        self.root = str(self.client.endpoint)
        """The path of the store itself."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return os.fspath(path).rstrip("/")

    @property
    def store_name(self) -> str:
        """The broker name of the store."""
        return self.client.open(()).broker_name

    @property
    def store_id(self) -> str:
        """The id of the store."""
        return self.client.open(()).store_id

    @property
    def is_written(self) -> bool:
        """Whether another process holds the lock of a store that is served read-only."""
        try:
            self.info(f"{self.root}/lock")
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder."""
        entries = self._walk(path, 0)
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_: Any,
    ) -> Any:
        """List everything below a folder."""
        depth = _DEPTH if maxdepth is None else max(maxdepth - 1, 0)
        found = {
            entry["name"]: entry
            for entry in self._walk(path, depth)
            if withdirs or entry["type"] == "file"
        }
        return found if detail else sorted(found)

    def _walk(self, path: str, depth: int) -> list[dict[str, Any]]:
        request = WalkRequest(self._inner(path), depth)
        return [
            self._described(entry)
            for entry in self._call(path, Code.WALK, request, ListReply).entries
        ]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe a file or folder."""
        request = PathRequest(self._inner(path))
        return self._described(self._call(path, Code.INFO, request, FileEntry))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Read a file, or a range of it."""
        size = self.size(path) if end is None or end < 0 or (start or 0) < 0 else end
        first, last, _step = slice(start, end).indices(size)
        parts = [
            self.read_ranges([path], [at], [min(_MAX_READ, last - at)])[0]
            for at in range(first, last, _MAX_READ)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Read ranges of files in one request."""
        starts = [starts] * len(paths) if isinstance(starts, int) else list(starts)
        ends = [ends] * len(paths) if isinstance(ends, int) else list(ends)
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        try:
            return list(self.read_ranges(paths, starts, lengths))
        except (OSError, RmqStoreError) as error:
            if on_error == "raise":
                raise
            is_of_one = isinstance(error, FileNotFoundError | StoreAccessError)
            if not is_of_one or len(set(paths)) < 2:
                return [error] * len(paths)
        found: list[Any] = []  # find out which of the files it is
        for path, group in groupby(range(len(paths)), paths.__getitem__):
            part = slice(len(found), len(found) + len(list(group)))
            found += self.cat_ranges([path] * (part.stop - part.start), starts[part], ends[part])
        return found

    def read_ranges(
        self, paths: Sequence[str], offsets: list[int], lengths: list[int]
    ) -> list[bytes]:
        """Read ranges of files in one request. A range is shorter only where its file ends.

        Args:
            paths: n, the file of each range.
            offsets, lengths: n, the ranges.
        """
        files = [(path, len(list(group))) for path, group in groupby(paths)]
        request = RangesRequest(
            tuple(self._inner(path) for path, _ in files),
            tuple(count for _, count in files),
            tuple(offsets),
            tuple(lengths),
        )
        path = paths[0] if len(files) == 1 else f"{len(files)} files of {self.root}"

        def read(link: Link, until: float) -> list[bytes]:
            ranges: list[bytes] = []
            parts: list[memoryview] = []
            room = sum(lengths)
            while len(ranges) < len(offsets):
                sizes, last = link.pieces(until)
                room -= sum(sizes)
                if room < 0:
                    raise _other_ranges(path)
                data = link.body(sum(sizes), until)
                for size, is_last in zip(sizes, last, strict=True):
                    if size:
                        parts.append(data[:size])
                        data = data[size:]
                    if is_last:
                        ranges.append(b"".join(parts))
                        parts = []
            if len(ranges) != len(offsets) or any(
                len(data) > length for data, length in zip(ranges, lengths, strict=True)
            ):
                raise _other_ranges(path)
            return ranges

        return self._told(path, lambda: self.client.connection.ask(Code.READ, request, read))

    def read_into(self, path: str, offset: int, out: npt.NDArray[np.uint8]) -> int:
        """Fill a buffer from a file; return the bytes read, fewer only at the file's end."""
        done = 0
        while done < len(out):
            room = out[done : done + _MAX_READ]
            count = self._read_into(path, offset + done, room)
            done += count
            if count < len(room):
                break
        return done

    def _read_into(self, path: str, offset: int, out: npt.NDArray[np.uint8]) -> int:
        request = RangesRequest((self._inner(path),), (1,), (offset,), (len(out),))
        room = memoryview(out)  # type: ignore[arg-type]

        def read(link: Link, until: float) -> int:
            done, is_complete = 0, False
            while not is_complete:
                sizes, last = link.pieces(until)
                size, is_complete = sum(sizes), last[-1]
                if size > len(out) - done or any(last[:-1]):
                    raise _other_ranges(path)
                link.body_into(room[done : done + size], until)
                done += size
            return done

        return self._told(path, lambda: self.client.connection.ask(Code.READ, request, read))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase:
        if mode != "rb":
            raise OSError(f"{path} is read-only: a store process serves its files to readers only.")
        return _RemoteFile(self, path)

    def _call(self, path: str, code: Code, request: object, answer: type[T]) -> T:
        return self._told(path, lambda: self.client.connection.call(code, request, answer))

    def _told(self, path: str, work: Callable[[], T]) -> T:
        """Run something; raise FileNotFoundError or StoreAccessError if the path is refused."""
        try:
            return work()
        except RefusedError as error:
            if error.status == NOT_FOUND:
                raise FileNotFoundError(f"{path} does not exist") from None
            if error.status == DENIED:
                raise StoreAccessError(f"{path} cannot be read: {error.args[0]}") from None
            raise

    def _inner(self, path: str) -> str:
        """Return the path within the store."""
        path = self._strip_protocol(path)
        if path == self.root:
            return ""
        if not path.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{path} is not below {self.root}")
        return str(path[len(self.root) + 1 :])

    def _described(self, entry: FileEntry) -> dict[str, Any]:
        """Return an entry as fsspec describes it."""
        return {
            "name": f"{self.root}/{entry.path}" if entry.path else self.root,
            "size": entry.size,
            "type": "directory" if entry.is_dir else "file",
            "mtime": entry.mtime_ms / 1000,
        }


def _other_ranges(path: str) -> RmqStoreError:
    return RmqStoreError(f"{path}: the store process sent other ranges than requested.")


class _RemoteFile(io.RawIOBase):
    """One file, readable at any position. Nothing is cached, since the file can grow."""

    def __init__(self, fs: StoreFileSystem, path: str) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._at = 0
        fs.info(path)  # fails at once if the file does not exist

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = (self._fs.size(self._path) if base is None else base) + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        out = np.frombuffer(buffer, np.uint8)[:_MAX_READ]
        count = self._fs.read_into(self._path, self._at, out)
        self._at += count
        return count
