"""Any file system of fsspec: object stores, archives, memory, SFTP, HDFS and others.

It reads in one of two ways. File systems that answer range requests (`async_impl`: S3, GCS, Azure,
HTTP) get several range requests at once. All others are read through open handles. In a compressed
archive a handle moves forward cheaply, but going back decompresses from the start again.
"""

from __future__ import annotations

import datetime as dt
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any
from zipfile import BadZipFile

import numpy as np
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.files.base import (
    FileInfo,
    FileRange,
    HandleCache,
    Int64Array,
    Listing,
    UInt8Array,
    join,
    translated,
    walk_by_folder,
)
from rmqstore_spark.files.schemes import lacks_rights, plain_text, refused_access
from rmqstore_spark.files.spans import plan_runs
from rmqstore_spark.layout import kernel

_OPEN_FILES = 32

# A request costs tens of milliseconds; in that time a connection moves far more than this.
_REQUEST_GAP = 64 << 10

# Length of a request (a little more if ranges were joined), and so of the memory it takes.
_REQUEST_BYTES = 8 << 20

# Concurrent requests ask for about this many bytes together.
_AT_ONCE_BYTES = 32 << 20

# A store process answers requests for so many files.
_AT_ONCE = 4096

# Longer reads check the file's size first: some handles allocate the whole length before they know
# how many bytes there are.
_UNCHECKED_READ = 16 << 20


class FsspecFiles:
    """`Files` over an fsspec file system.

    Ranges that lie close together become one request; the bytes between them are dropped. After a
    fork the file system is created again, because connections and file positions would be shared
    with the parent.

    Args:
        fs: the file system. It must be possible to create it again from its own arguments.
    """

    is_local = False
    max_gap = 4096
    max_waste = 1
    block = 64 << 10
    stretch = _AT_ONCE_BYTES  # a request costs more than a cache gains

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.place = tokenize(type(fs), fs.storage_args, fs.storage_options)
        self._fs = fs
        self._handles: HandleCache[Any] = HandleCache(_close, _OPEN_FILES)
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._fs,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._fs).__name__})"

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        """Return the entries of a folder by name; see `Files.list`."""
        fs = self._here()
        with _failures(path):
            # Many file systems cache listings, but a store can grow.
            fs.invalidate_cache(path)
            found = {
                info.name: info for info in map(_described, fs.ls(path, detail=True)) if info.name
            }
            if list(found) == [_last_part(path)] and not fs.isdir(path):
                raise FileNotFoundError(f"{path} is not a folder")
            if sizes:
                found = {name: self._sized(path, info) for name, info in found.items()}
        self._drop_handles(path, found)
        return [found[name] for name in sorted(found)]

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """Yield all folders down to `depth` levels below `path`; see `Files.walk`."""
        if not self.lists_trees:
            yield from walk_by_folder(self, path, depth, on_error)
            return
        try:
            with _failures(path):
                fs = self._here()
                fs.invalidate_cache(path)
                found = fs.find(path, withdirs=True, detail=True)
        except (OSError, RmqStoreError) as error:
            on_error("", error)
            return
        folders = _by_folder(found, fs._strip_protocol(path).strip("/"), depth)
        if not folders and not self.exists(path):
            on_error("", FileNotFoundError(f"{path} does not exist"))
            return
        for relative in sorted(folders or {"": {}}):
            entries = folders.get(relative, {})
            yield relative, [entries[name] for name in sorted(entries)]

    def resolve(self, path: str) -> str:
        """Return the path itself."""
        return path

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        with _failures(path):
            return int(self._here().size(path) or 0)

    def used_size(self, path: str) -> int | None:  # noqa: ARG002
        """Return None: no such file system tells where a file has holes."""
        return None

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        try:
            with _failures(path):
                return bool(self._here().exists(path))
        except (OSError, RmqStoreError):
            return False

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer only at the end of the file."""
        return next(self._read_all([FileRange(path, offset, length)])) if length > 0 else b""

    def read_many(self, ranges: Sequence[FileRange]) -> Sequence[bytes]:
        """Read ranges of several files; see `Files.read_many`."""
        return list(self._read_all(ranges))

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` and return the bytes read; fewer only at the end of the file."""
        fs = self._here()
        if not getattr(fs, "fills_buffers", False):
            return self._fill([FileRange(path, offset, len(out))], out)
        with _failures(path):
            return int(fs.read_into(path, offset, out))

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file into `out`, one after the other; see `Files.read_spans`."""
        if not len(offsets):
            return 0
        # A request ends where its window ends; otherwise it could grow as long as the whole file.
        windows = offsets // _REQUEST_BYTES
        runs = plan_runs(offsets, lengths, windows, max_gap=_REQUEST_GAP, max_waste=_REQUEST_GAP)
        requests = [
            FileRange(path, *each)
            for each in zip(runs.offsets.tolist(), runs.lengths.tolist(), strict=True)
        ]
        if len(requests) == len(offsets):
            done = self._fill(requests, out)
            return int(np.searchsorted(np.cumsum(lengths), done, side="right"))
        begins = np.cumsum(runs.lengths) - runs.lengths
        firsts: list[int] = np.searchsorted(runs.positions, begins).tolist()
        places = runs.positions - np.repeat(begins, np.diff([*firsts, len(offsets)]))
        at = 0
        for first, last, data in zip(
            firsts, [*firsts[1:], len(offsets)], self._read_all(requests), strict=True
        ):
            got = np.frombuffer(data, np.uint8)
            whole = int(np.count_nonzero(places[first:last] + lengths[first:last] <= len(got)))
            until = first + whole
            at += _pack(got, places[first:until], lengths[first:until], out[at:])
            if until < last:
                return until
        return len(offsets)

    def close(self) -> None:
        """Close all handles."""
        self._handles.close()

    @property
    def store_name(self) -> str | None:
        """The store's own name, if a store process serves the files."""
        name: str | None = getattr(self._here(), "store_name", None)
        return name

    @property
    def store_id(self) -> str | None:
        """The store's id, if a store process serves the files."""
        found: str | None = getattr(self._here(), "store_id", None)
        return found

    @property
    def is_written(self) -> bool | None:
        """Whether a process writes the store, as a store process sees it; None if none serves it.

        It is False for a store that its own process serves: readers see it as a closed one.
        """
        return getattr(self._here(), "is_written", None)

    def _here(self) -> AbstractFileSystem:
        """Return the file system, created again in a forked child."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._handles.forget()
            self._fs = type(self._fs)(*self._fs.storage_args, **self._fs.storage_options)
        return self._fs

    def _open(self, path: str) -> Any:
        # Unbuffered: on a growing store, bytes that a handle read ahead would soon be stale.
        return self._fs.open(path, "rb", cache_type="none")

    def _fill(self, ranges: Iterable[FileRange], out: UInt8Array) -> int:
        """Read ranges in order; return the bytes before the first gap."""
        requests = [
            FileRange(path, offset + at, min(_REQUEST_BYTES, length - at))
            for path, offset, length in ranges
            for at in range(0, length, _REQUEST_BYTES)
        ]
        done = 0
        for (_, _, length), data in zip(requests, self._read_all(requests), strict=True):
            out[done : done + len(data)] = np.frombuffer(data, np.uint8)
            done += len(data)
            if len(data) < length:
                break
        return done

    def _read_all(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        """Yield the bytes of each range, in order; fewer only at the end of the file."""
        if not _takes_ranges(self._here()):
            for path, offset, length in requests:
                with _failures(path):
                    yield self._read_handle(path, offset, length)
            return
        for ranges in _at_once(requests):
            with _failures(ranges[0].path):
                found = self._fs.cat_ranges(
                    [path for path, _, _ in ranges],
                    [offset for _, offset, _ in ranges],
                    [offset + length for _, offset, length in ranges],
                    on_error="return",
                )
            for (path, offset, length), data in zip(ranges, found, strict=True):
                yield self._checked(path, offset, length, data)

    def _checked(self, path: str, offset: int, length: int, data: bytes | Exception) -> bytes:
        """Return the answer to a range request, or raise if it is not one."""
        if isinstance(data, Exception):
            # Many servers refuse a range that begins past the end instead of returning nothing.
            if not isinstance(data, FileNotFoundError) and offset >= self.size(path):
                return b""
            with _failures(path):
                raise data
        if len(data) > length:
            raise RmqStoreError(
                f"{path}: the server sent {len(data)} bytes instead of {length}. "
                "It does not support range requests. Copy the store, or mount it."
            )
        return data

    def _read_handle(self, path: str, offset: int, length: int) -> bytes:
        if length > _UNCHECKED_READ:
            length = min(length, max(self.size(path) - offset, 0))
        handle = self._handles.get(path, self._open)
        try:
            handle.seek(offset)
            parts = []
            while length > 0 and (part := handle.read(length)):
                parts.append(part)
                length -= len(part)
        except Exception:
            self._handles.drop(path)  # its position is unknown now
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def reads_together(self) -> bool:
        """Whether several ranges take one request, or several at once."""
        return _takes_ranges(self._fs)

    @property
    def lists_trees(self) -> bool:
        """Whether one call lists all files below a folder."""
        kind = type(self._fs)
        return kind.find is not AbstractFileSystem.find or (
            issubclass(kind, AsyncFileSystem) and kind._find is not AsyncFileSystem._find
        )

    def _sized(self, folder: str, info: FileInfo) -> FileInfo:
        """Return the entry with its size, asked for if the listing did not include it."""
        if info.is_dir or info.size >= 0:
            return info
        return info._replace(size=self.size(join(folder, info.name)))

    def _drop_handles(self, folder: str, names: Iterable[str]) -> None:
        """Close handles whose file may have been replaced; an archive does not change."""
        if not isinstance(self._fs, AbstractArchiveFileSystem):
            for name in names:
                self._handles.drop(join(folder, name))


def _by_folder(
    found: Mapping[str, Mapping[str, Any]], root: str, depth: int
) -> dict[str, dict[str, FileInfo]]:
    """Group the files of a tree by folder, down to a depth.

    Args:
        found: fsspec's description of each path.
        root: path of the tree, without slashes at its ends.
        depth: levels of folders below the root.

    Returns:
        Entries by name, by folder relative to the root. Includes folders that only occur as part of
        a path.
    """
    folders: dict[str, dict[str, FileInfo]] = {}
    for key, raw in found.items():
        path = key.strip("/")
        if root and not path.startswith(root + "/"):
            continue
        parts = path[len(root) :].strip("/").split("/", depth + 1)
        folder = ""
        for part in parts[:-1]:
            folders.setdefault(folder, {}).setdefault(part, FileInfo(part, 0, True, -1))
            folder = f"{folder}/{part}" if folder else part
        if len(parts) <= depth + 1:
            info = _described(raw)
            entries = folders.setdefault(folder, {})
            if info.name and not (info.name in entries and info.is_dir):
                entries[info.name] = info
                if info.is_dir and len(parts) <= depth:
                    folders.setdefault(f"{folder}/{info.name}" if folder else info.name, {})
    return folders


def _described(raw: Mapping[str, Any]) -> FileInfo:
    """Return an entry as fsspec describes it; size -1 if it gives none."""
    kind, size = raw.get("type"), raw.get("size")
    is_dir = kind == "directory"
    if is_dir or kind == "other":  # a pipe, a device, a dangling link
        size = 0
    return FileInfo(
        _last_part(str(raw["name"])),
        -1 if size is None else int(size),
        is_dir,
        _mtime_ms(raw),
        bool(raw.get("islink", False)),
    )


def _last_part(path: str) -> str:
    """Return the name of a file or folder."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def _mtime_ms(raw: Mapping[str, Any]) -> int:
    """Return the time of the last change; file systems use different names for it."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = raw.get(key)
        if isinstance(value, dt.datetime):
            return int(value.timestamp() * 1000)
        if isinstance(value, (int, float)):
            return int(value * 1000)
    return -1


def _at_once(requests: Sequence[FileRange]) -> Iterator[Sequence[FileRange]]:
    """Group requests into those that are sent together."""
    parts = np.cumsum([length for _, _, length in requests]) // _AT_ONCE_BYTES
    parts += np.arange(len(requests)) // _AT_ONCE
    for _, part in groupby(zip(parts.tolist(), requests, strict=True), itemgetter(0)):
        yield [request for _, request in part]


def _takes_ranges(fs: AbstractFileSystem) -> bool:
    """Return whether a file system answers several range requests at once."""
    return bool(fs.async_impl or getattr(fs, "takes_ranges", False))


def _pack(data: UInt8Array, starts: Int64Array, lengths: Int64Array, out: UInt8Array) -> int:
    """Copy ranges of `data` into `out`, one after the other; return the bytes copied."""
    if not len(starts):
        return 0
    offsets = np.empty(len(starts) + 1, np.int32)
    kernel.active.gather(data, starts, lengths.astype(np.int32), offsets, out)
    return int(offsets[-1])


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turn every failure into an error of this package."""
    try:
        yield
    except RmqStoreError:
        raise
    except PermissionError as error:
        raise refused_access(path, error) from error
    except OSError as error:
        raise translated(error, path) from error
    except (BadZipFile, EOFError, zlib.error) as error:
        raise CorruptStoreError(
            f"the archive is damaged ({error})", file=path, remedy="Copy it again, or unpack it."
        ) from error
    except Exception as error:  # every file system library raises its own exceptions
        if lacks_rights(error):
            raise refused_access(path, error) from error
        raise RmqStoreError(
            f"{path} could not be read: {type(error).__name__}: {plain_text(error)}. "
            "Check the connection and the storage options."
        ) from error


def _close(handle: Any) -> None:
    handle.close()
