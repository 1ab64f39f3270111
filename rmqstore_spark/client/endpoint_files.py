"""The files of a store, as its process gives them to readers.

    Store.open("rmq://127.0.0.1:10921")

A path is the endpoint and a path in the store: `rmq://127.0.0.1:10921/config/topics.json`. Nothing
is cached, since a store can grow.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from rmqstore_spark.client.connection import Connection
from rmqstore_spark.client.link import Link
from rmqstore_spark.errors import RefusedError, RmqStoreError, StoreAccessError
from rmqstore_spark.files.systems.base import (
    FileInfo,
    FileRange,
    Listing,
    UInt8Array,
    listed_by_folder,
)
from rmqstore_spark.files.systems.spans import RangeFiles, asked_together
from rmqstore_spark.wire.protocol import DENIED, NOT_FOUND, Code
from rmqstore_spark.wire.reading import (
    FileEntry,
    ListReply,
    OpenRequest,
    PathRequest,
    RangesRequest,
    WalkRequest,
)

T = TypeVar("T")


class EndpointFiles(RangeFiles):
    """`Files` of a store process. One request can list a tree, or read ranges of many files.

    Connections are opened when they are needed, and a fork opens its own: see `Connection`.

    Args:
        endpoint: the endpoint of the process; see `parse_endpoint`.
        options: options of `StoreClient`; any other is a TypeError.

    Attributes:
        connection: calls the process.
        root: the path of the store itself.

    Raises:
        OptionError: the endpoint is invalid, or a file that an option names cannot be used.
    """

    lists_trees = True
    reads_together = True

    def __init__(self, endpoint: str, **options: Any) -> None:
        self.connection = Connection(endpoint, **options)
        self.root = self.place = str(self.connection.endpoint)
        self._options = options

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **self._options), (self.root,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def store_name(self) -> str:
        """The broker name of the store."""
        return self.connection.open(OpenRequest(())).broker_name

    @property
    def store_id(self) -> str:
        """The id of the store."""
        return self.connection.open(OpenRequest(())).store_id

    @property
    def is_written(self) -> bool:
        """Whether another process holds the lock of a store that is served read-only.

        It is False for a store that its own process serves: readers see it as a closed one.
        """
        return self.exists(f"{self.root}/lock")

    def list(self, path: str, *, sizes: bool = True) -> Listing:  # noqa: ARG002 - they cost nothing
        """Return the entries of a folder by name; see `Files.list`."""
        _, listing = next(self._tree(path, 0))
        return listing

    def walk(
        self, path: str, depth: int, on_error: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, Listing]]:
        """Yield all folders down to `depth` levels below `path`; see `Files.walk`."""
        try:
            tree = self._tree(path, depth)
        except (OSError, RmqStoreError) as error:
            on_error("", error)
            return
        yield from tree

    def resolve(self, path: str) -> str:
        """Return the path itself."""
        return path

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        return self._call(path, Code.INFO, PathRequest(self._inner(path)), FileEntry).size

    def used_size(self, path: str) -> int | None:  # noqa: ARG002
        """Return None: a store process does not tell where a file has holes."""
        return None

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists, as far as readers may know."""
        try:
            self.size(path)
        except (FileNotFoundError, StoreAccessError):
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def _tree(self, path: str, depth: int) -> Iterator[tuple[str, Listing]]:
        """Return what `walk` yields, listed with one request."""
        inner = self._inner(path)
        entries = self._call(path, Code.WALK, WalkRequest(inner, depth), ListReply).entries
        front = f"{inner}/" if inner else ""
        if not all(entry.path.startswith(front) for entry in entries):
            raise RmqStoreError(f"{path}: the store process sent files of another folder.")
        return listed_by_folder(((e.path[len(front) :], _described(e)) for e in entries), depth)

    def _ask(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        room = np.empty(sum(length for _, _, length in requests), np.uint8).data
        at = 0
        for count in self._receive(requests, room):
            yield bytes(room[at : at + count])
            at += count

    def _fill(self, requests: Sequence[FileRange], out: UInt8Array) -> int:
        done = 0
        for ranges in asked_together(requests):
            room = out[done : done + sum(length for _, _, length in ranges)].data
            for (_, _, length), count in zip(ranges, self._receive(ranges, room), strict=True):
                done += count
                if count < length:
                    return done
        return done

    def _receive(self, ranges: Sequence[FileRange], out: memoryview) -> Sequence[int]:
        """Read ranges with one request into `out`, one after the other, without gaps.

        Returns:
            The bytes that were read of each range.
        """
        files = [(path, len(list(group))) for path, group in groupby(ranges, itemgetter(0))]
        _, offsets, lengths = zip(*ranges, strict=True)
        request = RangesRequest(
            tuple(self._inner(path) for path, _ in files),
            tuple(count for _, count in files),
            offsets,
            lengths,
        )
        path = files[0][0] if len(files) == 1 else f"{len(files)} files of {self.root}"

        def read(link: Link, until: float) -> Sequence[int]:
            counts: list[int] = []
            done = count = 0
            while len(counts) < len(ranges):
                sizes, last = link.pieces(until)
                end = done + sum(sizes)
                if end > len(out):
                    raise _other_ranges(path)
                link.body_into(out[done:end], until)
                done = end
                for size, is_last in zip(sizes, last, strict=True):
                    count += size
                    if is_last:
                        counts.append(count)
                        count = 0
            if len(counts) != len(ranges) or any(
                count > length for count, length in zip(counts, lengths, strict=True)
            ):
                raise _other_ranges(path)
            return counts

        return self._told(path, lambda: self.connection.ask(Code.READ, request, read))

    def _call(self, path: str, code: Code, request: object, answer: type[T]) -> T:
        return self._told(path, lambda: self.connection.call(code, request, answer))

    def _told(self, path: str, work: Callable[[], T]) -> T:
        """Run something; raise FileNotFoundError or StoreAccessError if the path is refused."""
        try:
            return work()
        except RefusedError as error:
            text = str(error.args[0])
            if error.status == NOT_FOUND:
                raise FileNotFoundError(errno.ENOENT, text.rstrip("."), path) from None
            if error.status == DENIED:
                raise StoreAccessError(f"{path} cannot be read: {text}") from None
            raise

    def _inner(self, path: str) -> str:
        """Return the path within the store."""
        path = path.rstrip("/")
        if path == self.root:
            return ""
        if not path.startswith(f"{self.root}/"):
            raise FileNotFoundError(errno.ENOENT, f"it is not below {self.root}", path)
        return path[len(self.root) + 1 :]


def _described(entry: FileEntry) -> FileInfo:
    name = entry.path.rpartition("/")[2]
    return FileInfo(name, entry.size, entry.is_dir, entry.mtime_ms)


def _other_ranges(path: str) -> RmqStoreError:
    return RmqStoreError(f"{path}: the store process sent other ranges than requested.")
