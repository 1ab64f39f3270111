"""Writes into the CommitLog's segments through a bounded number of open files, and flushes them.

The methods that write belong to one thread at a time (the store's append lock); `create`, `flush`
and the offsets to any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.published_end import PublishedEnd
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import (
    WRITE_BYTES,
    explained,
    explanation,
    start_write_back,
    sync_data,
    sync_folder,
)
from rmqstore_spark.layout.spans import U1

_ERASE_BYTES: Final = 1 << 20
_OPEN_FILES: Final = 64


class OpenSegments:
    """The segments of a log that are open for writing.

    Args:
        files: the files of all segments.
        published: where the log ends; everything before it is on disk.
        on_flushed: called with each new `flushed_offset`, before anybody else learns it.

    Attributes:
        flushed_offset: the physical offset up to which the log is known to be on disk.
        failure: the flush that failed, if one did. Since then it is unknown what is on disk.
    """

    def __init__(
        self,
        files: SegmentFiles,
        published: PublishedEnd,
        on_flushed: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._files = files
        self._published = published
        self._on_flushed = on_flushed
        self.flushed_offset = published.offset
        self.failure: StoreWriteError | None = None
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._open: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._syncing: frozenset[int] = frozenset()

    def create(self, start: int) -> None:
        """Create a segment durably, and open it.

        Its name is on disk before a record is in it. So a queue that names a record shows that the
        file was there, also after a power cut.

        Args:
            start: physical offset of its first byte.

        Raises:
            StoreWriteError: it cannot be created; or a flush failed, which `failure` is then.
        """
        self._make_room()
        descriptor = self._files.make(start)
        with self._lock:
            is_kept = len(self._open) < _OPEN_FILES
            if is_kept:
                self._open[start] = descriptor
        if not is_kept:
            os.close(descriptor)
        try:
            sync_folder(self._files.folder)
        except StoreWriteError as error:
            self.failure = error
            raise

    def write(self, at: int, chunks: Sequence[memoryview | bytes]) -> None:
        """Write chunks one after the other into one segment, from a physical offset on.

        Raises:
            StoreWriteError: the write failed. A part may have been written.
        """
        offset = at % self._files.size
        start = at - offset
        descriptor = self._open.get(start)
        if descriptor is None:
            descriptor = self._descriptor(start)
        write_chunks(descriptor, self._files, at, chunks)
        with self._lock:
            self._dirty.add(start)

    def write_one(self, at: int, data: bytearray | U1) -> None:
        """Write bytes as `write` does, in one call of the system if it takes all of them."""
        offset = at % self._files.size
        start = at - offset
        descriptor = self._open.get(start)
        view = memoryview(data)  # type: ignore[arg-type]  # an array is one, too
        if descriptor is None or len(view) > WRITE_BYTES:
            self.write(at, [view])
            return
        assert offset + len(view) <= self._files.size, (
            f"{len(view)} bytes at physical offset {at} do not fit into their segment"
        )
        try:
            written = os.pwrite(descriptor, view, offset)
        except OSError as error:
            raise explanation(error, self._files.path(start), "written") from error
        if written < len(view):
            self.write(at + written, [view[written:]])
            return
        with self._lock:
            self._dirty.add(start)

    def erase(self, begin: int, end: int) -> None:
        """Overwrite a part of one segment with zeros, its end first.

        Args:
            begin, end: physical offsets.

        Raises:
            StoreWriteError: the write failed.
        """
        for at, zeros in zeros_backwards(begin, end):
            self.write(at, [zeros])

    def start_write_back(self, begin: int, end: int) -> None:
        """Ask the system to start writing a part of one segment to disk; returns at once."""
        offset = begin % self._files.size
        start = begin - offset
        start_write_back(self._descriptor(start), offset, end - begin)

    def flush(self) -> int:
        """Flush everything that was written, hidden bytes included; see `CommitLogWriter.flush`."""
        with self._flushing:
            if self.failure is not None:
                raise self.failure
            with self._lock:
                end = self._published.offset
                assert end >= self.flushed_offset, (
                    f"the log ends at {end}, and was flushed up to {self.flushed_offset}"
                )
                self._syncing = frozenset(self._dirty)
                self._dirty.clear()
                descriptors = [self._open[start] for start in sorted(self._syncing)]
            reach("flush.before_sync")
            try:
                with explained(self._files.folder, "flushed"):
                    for descriptor in descriptors:
                        sync_data(descriptor)
            except StoreWriteError as error:
                self.failure = error
                raise
            reach("flush.after_sync")
            self._on_flushed(end)
            with self._lock:
                self._syncing = frozenset()
                self.flushed_offset = end
            return end

    def remove(self, start: int) -> None:
        """Remove a segment.

        Raises:
            StoreWriteError: it could not be removed.
        """
        with self._flushing, self._lock:
            descriptor = self._open.pop(start, None)
            self._dirty.discard(start)
        if descriptor is not None:
            os.close(descriptor)
        self._files.remove(start)

    def close_finished(self) -> None:
        """Close the flushed segments that end before the log does: nobody writes into them."""
        if len(self._open) < 2:
            return
        end = self._published.offset
        current = end - end % self._files.size
        with self._lock:
            finished = [
                start
                for start in self._open
                if start < current and start not in self._dirty and start not in self._syncing
            ]
            for start in finished:
                os.close(self._open.pop(start))

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    # ---- parts -----------------------------------------------------------------------------------

    def _descriptor(self, start: int) -> int:
        descriptor = self._open.get(start)
        if descriptor is None:
            self._make_room()
            descriptor = self._files.open(start)
            with self._lock:
                self._open[start] = descriptor
        return descriptor

    def _make_room(self) -> None:
        """Bound the number of open files: flush the dirty ones, so that they can be closed."""
        if len(self._open) >= _OPEN_FILES:
            self.flush()
            self.close_finished()


def write_chunks(
    descriptor: int, files: SegmentFiles, at: int, chunks: Sequence[memoryview | bytes]
) -> None:
    """Write chunks one after the other into one segment, from a physical offset on.

    Args:
        descriptor: the segment, open for writing.
        files: the files of all segments.
        at: the physical offset.
        chunks: the bytes.

    Raises:
        StoreWriteError: the write failed. A part may have been written.
    """
    offset = at % files.size
    views: list[memoryview] = list(map(memoryview, chunks))  # type: ignore[arg-type]
    size = sum(map(len, views))
    assert offset + size <= files.size, (
        f"{size} bytes at physical offset {at} do not fit into their segment of {files.size} bytes"
    )
    try:  # without a call of `explained`: this is done for each message
        while views:
            first = views if len(views[0]) <= WRITE_BYTES else [views[0][:WRITE_BYTES]]
            written = os.pwritev(descriptor, first, offset)
            offset += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]
    except OSError as error:
        raise explanation(error, files.path(at - at % files.size), "written") from error


def zeros_backwards(begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the zeros for a part of a segment, and the physical offset of each, its end first."""
    zeros = bytes(min(_ERASE_BYTES, end - begin))
    for at in reversed(range(begin, end, _ERASE_BYTES)):
        yield at, zeros[: end - at]
