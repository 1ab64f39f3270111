"""Any file system of fsspec: object stores, archives, memory, SFTP, HDFS and others.

It reads in one of two ways. File systems that answer range requests (`async_impl`: S3, GCS, Azure,
HTTP) get several range requests at once. All others are read through open handles. In a compressed
archive a handle moves forward cheaply, but going back decompresses from the start again.
"""

from __future__ import annotations

import datetime as dt
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zipfile import BadZipFile

from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.files.systems.base import (
    FileInfo,
    FileRange,
    HandleCache,
    Listing,
    join,
    listed_by_folder,
    translated,
    walk_by_folder,
)
from rmqstore_spark.files.systems.schemes import lacks_rights, plain_text, refused_access
from rmqstore_spark.files.systems.spans import RangeFiles

_OPEN_FILES = 32

# Longer reads check the file's size first: some handles allocate the whole length before they know
# how many bytes there are.
_UNCHECKED_READ = 16 << 20


class FsspecFiles(RangeFiles):
    """`Files` over an fsspec file system.

    After a fork the file system is created again, because connections and file positions would be
    shared with the parent.

    Args:
        fs: the file system. It must be possible to create it again from its own arguments.
    """

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
        self._drop_handles(path)
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
        root = fs._strip_protocol(path).strip("/")
        entries = [(_below(key, root), _described(raw)) for key, raw in found.items()]
        entries = [(relative, info) for relative, info in entries if relative]
        if not entries and not self.exists(path):
            on_error("", FileNotFoundError(f"{path} does not exist"))
            return
        yield from listed_by_folder(entries, depth)

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

    def close(self) -> None:
        """Close all handles."""
        self._handles.close()

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

    def _ask(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        fs = self._here()
        if not fs.async_impl:
            for path, offset, length in requests:
                with _failures(path):
                    yield self._read_handle(path, offset, length)
            return
        with _failures(requests[0].path):
            found = fs.cat_ranges(
                [path for path, _, _ in requests],
                [offset for _, offset, _ in requests],
                [offset + length for _, offset, length in requests],
                on_error="return",
            )
        for (path, offset, length), data in zip(requests, found, strict=True):
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
        """Whether several range requests are answered at once."""
        return bool(self._fs.async_impl)

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

    def _drop_handles(self, folder: str) -> None:
        """Close handles whose file may be gone or another one; an archive does not change."""
        if not isinstance(self._fs, AbstractArchiveFileSystem):
            for name in self._handles.opened_in(folder):
                self._handles.drop(join(folder, name))


def _below(key: str, root: str) -> str:
    """Return the path of a file relative to a folder; empty if it is not below that.

    Args:
        key: its path.
        root: the folder's path, without slashes at its ends.
    """
    path = key.strip("/")
    if not root:
        return path
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else ""


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
