"""Reads the part of the CommitLog that readers may see.

Bytes after its end may belong to a block that is not published yet (docs/format.md, "A block that
is not published yet"). So a master reads it here to send it to its slaves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.files.systems.reads import cached_spans
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.spans import I4, I8, U1


class PublishedLog:
    """Reads the published bytes of a log. Used by one thread at a time.

    Args:
        log: the log.
    """

    def __init__(self, log: CommitLogWriter) -> None:
        self._log = log
        self._open: tuple[int, int] | None = None  # where a segment begins, and its descriptor
        self._reading = threading.Lock()
        log.tell_of_expiry(self)

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._log.segment_size

    @property
    def begin(self) -> int:
        """The physical offset of the log's first byte."""
        return self._log.min_offset

    @property
    def end(self) -> int:
        """The physical offset at which the log ends for readers."""
        return self._log.max_offset

    def wait_beyond(self, offset: int, timeout: float) -> bool:
        """Wait until the log's end is beyond an offset, for some seconds; return whether it is."""
        return self._log.published.wait_beyond(offset, timeout)

    def readable(self, at: int) -> int:
        """Return how many bytes can be read from an offset on, up to the end of its segment.

        Raises:
            SegmentExpiredError: the log begins behind that offset.
        """
        if at < self.begin:
            path = self._path(at - at % self.segment_size)
            raise SegmentExpiredError("the segment has expired", file=path)
        if at >= self.end:
            return 0
        return min(self.end - at, self.segment_size - at % self.segment_size)

    @contextmanager
    def segment(self, at: int) -> Iterator[tuple[int, int]]:
        """Open the segment of a physical offset: its descriptor, and where it begins.

        Raises:
            SegmentExpiredError: the segment is gone.
        """
        start = at - at % self.segment_size
        with self._reading:
            yield self._descriptor(start), start
        self._drop_expired()

    def let_go(self) -> None:
        """Close a segment that has expired; called from any thread. A read in progress does so."""
        if self._reading.acquire(blocking=False):
            try:
                if self._open is not None and self._open[0] < self.begin:
                    self._close()
            finally:
                self._reading.release()

    def shorter(self, at: int) -> SegmentExpiredError:
        """Return the error for a segment that ends before what was published of it.

        Args:
            at: a physical offset in it.
        """
        path = self._path(at - at % self.segment_size)
        return SegmentExpiredError("the segment has become shorter", file=path)

    def read_into(self, at: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers with bytes of one segment, which `readable` has allowed.

        Args:
            at: physical offset of the first byte.
            buffers: are filled one after the other.

        Raises:
            SegmentExpiredError: the segment is gone.
        """
        with self.segment(at) as (descriptor, start):
            left, offset = list(buffers), at - start
            while left:
                count = os.preadv(descriptor, left, offset)
                if not count:
                    raise self.shorter(at)
                offset += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes between two physical offsets of one segment."""
        data = bytearray(end - begin)
        if data:
            self.read_into(begin, [memoryview(data)])
        return bytes(data)

    def read_spans(self, offsets: I8, lengths: I4, *, may_wait: bool = True) -> tuple[U1, I8]:
        """Read records, which may lie in several segments.

        Args:
            offsets: n physical offsets of the published log; ascending ones are fastest.
            lengths: n, bytes of each, none beyond the end of its segment.
            may_wait: wait for the disk if need be.

        Returns:
            The bytes, and where each record begins in them.

        Raises:
            SegmentExpiredError: a segment is gone.
            BlockingIOError: it would have to wait for the disk, and may not.
        """
        read = kernel.active.pread_spans if may_wait else cached_spans
        ends = np.cumsum(lengths, dtype=np.int64)
        data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        for first, last in self._parts(offsets):
            start = int(offsets[first]) // self.segment_size * self.segment_size
            out = data[int(ends[first]) - int(lengths[first]) : int(ends[last - 1])]
            with self._reading:
                descriptor = self._descriptor(start)
                done = read(descriptor, offsets[first:last] - start, lengths[first:last], out)
            self._drop_expired()
            if done < last - first:
                raise self.shorter(start)
        return data, ends - lengths

    def close(self) -> None:
        """Close the segment that was read last."""
        with self._reading:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _parts(self, offsets: I8) -> Iterator[tuple[int, int]]:
        """Yield the first row, and the one after the last, of those in one segment each."""
        if not len(offsets):
            return
        size = self.segment_size
        begin = int(offsets[0]) // size * size
        # Usually all: this is done for each request of a consumer.
        if begin <= np.minimum.reduce(offsets) and np.maximum.reduce(offsets) < begin + size:
            yield 0, len(offsets)
            return
        changes = (np.flatnonzero(np.diff(offsets // size)) + 1).tolist()
        yield from pairwise([0, *changes, len(offsets)])

    def _drop_expired(self) -> None:
        if self._open is not None and self._open[0] < self.begin:
            self.let_go()  # it has expired meanwhile

    def _path(self, start: int) -> str:
        return self._log.segment_path(start)

    def _descriptor(self, start: int) -> int:
        if self._open is not None and self._open[0] == start:
            return self._open[1]
        self._close()
        path = self._path(start)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SegmentExpiredError("the segment was removed", file=path) from None
        self._open = start, descriptor
        return descriptor
