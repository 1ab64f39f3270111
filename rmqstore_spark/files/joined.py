"""Reads a store and its archives as one: a file is where one of them has it.

A store moves segments, and files of queues and index, from its front to its archive
(`engine.expiry`). Names are offsets, so the parts of all logs fit together. A file can be in both:
a segment that is about to be removed, or the last file of a queue, which the archive has up to its
own end. The longer file is used, and the store's if they are alike. If it vanishes while it is
read, another part has it by then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from rmqstore_spark.errors import OptionError, StoreAccessError, StoreNotFoundError
from rmqstore_spark.files.log_files import list_or_nothing, segment_start
from rmqstore_spark.files.names import ARCHIVE_NAME, OWN_FOLDER, STORE_ID_NAME
from rmqstore_spark.files.systems.base import (
    FileInfo,
    FileRange,
    Files,
    Int64Array,
    Listing,
    UInt8Array,
    join,
    walk_by_folder,
)

__all__ = ["JoinedFiles", "archived_store", "store_id_at"]

_log = logging.getLogger(__name__)

_COMPARED: Final = 4096  # bytes at each end of a file
_QUEUES_COMPARED: Final = 8
_MARKER_BYTES: Final = 4096

T = TypeVar("T")


def archived_store(files: Files, path: str) -> str | None:
    """Return the id of the store whose archive a folder is; None if it is not one."""
    try:
        marker = json.loads(files.read(join(path, ARCHIVE_NAME), 0, _MARKER_BYTES))
    except (FileNotFoundError, StoreAccessError, ValueError):
        return None
    return str(marker.get("storeId")) if isinstance(marker, dict) else None


def store_id_at(files: Files, path: str) -> str | None:
    """Return the id of a store; None if it has none that can be read.

    A store process tells the id of the store that it serves, in place of the file.
    """
    told: str | None = getattr(files, "store_id", None)
    if told is not None:
        return told
    try:
        found = files.read(join(path, OWN_FOLDER, STORE_ID_NAME), 0, _MARKER_BYTES)
    except (FileNotFoundError, StoreAccessError):
        return None
    return found.decode("ascii", "replace").strip()


class JoinedFiles:
    """`Files` of a store and its archives. Paths are those of the store.

    Args:
        store: the files and the path of the store.
        archives: those of its archives.
    """

    lists_trees = False
    reads_together = False

    def __init__(self, store: tuple[Files, str], archives: Sequence[tuple[Files, str]]) -> None:
        self._store = store
        self._archives = tuple(archives)
        self._parts = (store, *self._archives)
        self.place = store[0].place
        self.is_local = store[0].is_local
        self.max_gap = max(files.max_gap for files, _ in self._parts)
        self.max_waste = min(files.max_waste for files, _ in self._parts)
        self.block = max(files.block for files, _ in self._parts)
        self.stretch = max(files.stretch for files, _ in self._parts)
        self._longer: dict[str, int] = {}  # paths whose file is not the store's, and whose it is

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store, self._archives)

    def __repr__(self) -> str:
        return f"JoinedFiles({', '.join(path for _, path in self._parts)})"

    def list(self, path: str, *, sizes: bool = True) -> Listing:
        """Return the entries of a folder in all parts; see `Files.list`."""
        found: dict[str, FileInfo] = {}
        missing: FileNotFoundError | None = None
        has_listed = False
        for number, (files, there) in self._where(path):
            try:
                listing = files.list(there, sizes=sizes)
            except FileNotFoundError as error:
                missing = missing or error
                continue
            has_listed = True
            for info in listing:
                other = found.get(info.name)
                if other is None or info.size > other.size:
                    found[info.name] = info
                    self._longer[join(path, info.name)] = number
        if missing is not None and not has_listed:
            raise missing
        return [found[name] for name in sorted(found)]

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """Yield all folders down to `depth` levels below `path`; see `Files.walk`."""
        return walk_by_folder(self, path, depth, on_error)

    def resolve(self, path: str) -> str:
        """Return the path with all links resolved."""
        return self._store[0].resolve(path)

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        return self._first(path, lambda files, there: files.size(there))

    def used_size(self, path: str) -> int | None:
        """Return how many of a file's first bytes may hold something; see `Files.used_size`."""
        return self._first(path, lambda files, there: files.used_size(there))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists in any part."""
        return any(files.exists(there) for _, (files, there) in self._where(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer only at the end of the file."""
        return self._first(path, lambda files, there: files.read(there, offset, length))

    def read_many(self, ranges: Sequence[FileRange]) -> Sequence[bytes]:
        """Read ranges of several files; see `Files.read_many`."""
        return [self.read(*each) for each in ranges]

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` and return the bytes read; fewer only at the end of the file."""
        return self._first(path, lambda files, there: files.read_into(there, offset, out))

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file into `out`, one after the other; see `Files.read_spans`."""
        return self._first(
            path, lambda files, there: files.read_spans(there, offsets, lengths, out)
        )

    def close(self) -> None:
        """Close all handles."""
        for files, _ in self._parts:
            files.close()

    @property
    def store_name(self) -> str | None:
        """The store's own name, if a store process serves its files."""
        return getattr(self._store[0], "store_name", None)

    @property
    def store_id(self) -> str | None:
        """The store's id, if a store process serves its files."""
        return getattr(self._store[0], "store_id", None)

    def require_one_log(self) -> None:
        """Check that the parts belong to the same log, as far as a few reads show.

        Segments must have one size. Where two parts have the same file, its ends must be the same.

        Raises:
            StoreNotFoundError: a part that should be an archive is none.
            OptionError: the parts belong to different logs.
        """
        files, path = self._store
        here = _sizes(files, join(path, "commitlog"))
        for archive, root in self._archives:
            if archived_store(archive, root) is None:
                raise StoreNotFoundError(
                    f"{root} is not an archive of expired segments: it has no {ARCHIVE_NAME}."
                )
            there = _sizes(archive, join(root, "commitlog"))
            if here and there and set(there.values()) - set(here.values()):
                self._refuse(root, "their segments have different sizes")
            shared = sorted(here.keys() & there.keys())
            for name in {*shared[:1], *shared[-1:]}:
                self._compare(f"commitlog/{name}", there[name], archive, root)
            for name in islice(_queue_files(archive, root), _QUEUES_COMPARED):
                self._compare(name, archive.size(join(root, name)), archive, root)
            if here and there and (end := _end(there)) < int(min(here)):
                _log.warning(
                    "The archive %s ends at physical offset %d, and the log of %s begins at %d: "
                    "the messages between them are lost.", root, end, path, int(min(here)),
                )  # fmt: skip

    # ---- parts ---------------------------------------------------------------------------------

    def _where(self, path: str) -> Iterator[tuple[int, tuple[Files, str]]]:
        """Yield all places where a path of the store can be, and the numbers of their parts."""
        root = self._store[1]
        inner = path[len(root) :].strip("/") if join(path, "").startswith(join(root, "")) else None
        for number, (files, other) in enumerate(self._parts):
            if number == 0:
                yield number, (files, path)
            elif inner is not None:
                yield number, (files, join(other, *([inner] if inner else [])))

    def _first(self, path: str, work: Callable[[Files, str], T]) -> T:
        """Work on the part that has a file, or on another if the file is gone there."""
        first = self._longer.get(path, 0)
        places = sorted(self._where(path), key=lambda place: (place[0] != first, place[0]))
        missing: FileNotFoundError | None = None
        for _, (files, there) in places:
            try:
                return work(files, there)
            except FileNotFoundError as error:
                missing = missing or error
        raise missing or FileNotFoundError(path)

    def _compare(self, name: str, size: int, archive: Files, root: str) -> None:
        files, path = self._store
        for at in (0, max(0, size - _COMPARED)):
            length = min(_COMPARED, size)
            try:
                here = files.read(join(path, name), at, length)
                there = archive.read(join(root, name), at, length)
            except FileNotFoundError:
                return
            if here != there:
                self._refuse(root, f"{name} differs between offsets {at} and {at + length}")

    def _refuse(self, root: str, why: str) -> None:
        raise OptionError(
            f"{root} is not the archive of {self._store[1]}: {why}. Read them one by one."
        )


def _sizes(files: Files, folder: str) -> dict[str, int]:
    """Return the sizes of a log's segments by name."""
    listing = list_or_nothing(files, folder)
    return {i.name: i.size for i in listing if segment_start(i.name) is not None and not i.is_dir}


def _end(sizes: dict[str, int]) -> int:
    last = max(sizes)
    return int(last) + sizes[last]


def _queue_files(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the last file of each queue."""
    top = "consumequeue"
    for topic in list_or_nothing(files, join(root, top)):
        for queue in list_or_nothing(files, join(root, top, topic.name)):
            folder = join(root, top, topic.name, queue.name)
            names = [info.name for info in list_or_nothing(files, folder)]
            if names:
                yield join(top, topic.name, queue.name, max(names))
