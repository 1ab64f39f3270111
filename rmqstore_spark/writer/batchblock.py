"""The rows of a Spark batch on their way into the log: one block, seen whole or not at all.

The block can be larger than memory. So it goes in parts, each a portion of a stage, three times
over: ascending, to find the place and the number of each record, from the stages' tables of rows
alone; descending, to stamp the records and write them behind a hidden head; and, when that head was
published, ascending again, to hand them to queues and index.

See docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.layout.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.spans import I8, U1
from rmqstore_spark.writer.commitlog import CommitLogWriter
from rmqstore_spark.writer.dispatch import Appended
from rmqstore_spark.writer.failpoints import reach
from rmqstore_spark.writer.placement import Placement, place
from rmqstore_spark.writer.stage import Portion, Rows

__all__ = ["BatchBlock", "Source", "Stamp"]

_MAGIC: Final = slice(4, 8)
_OPEN_FILES: Final = 64


class Source(Protocol):
    """What has records for a block: a stage, or the marker of its commit."""

    @property
    def routes(self) -> Sequence[Route]:
        """Queues that the records belong to."""
        ...

    @property
    def portions(self) -> Sequence[Portion]:
        """The records, in parts that fit into memory."""
        ...

    def read_rows(self, portion: Portion, files: HandleCache[int], /) -> Rows:
        """What is known of a portion's records."""
        ...

    def read_records(self, portion: Portion, buffer: U1, files: HandleCache[int], /) -> U1:
        """A portion's bytes, in a buffer that is long enough."""
        ...


@dataclass(frozen=True)
class Stamp:
    """What the store writes into each record of a block.

    Attributes:
        timestamp: storeTimestamp; later than that of every record before the block.
        host: address and port.
    """

    timestamp: int
    host: bytes


@dataclass(frozen=True)
class _Part:
    """A portion, where it goes, and at which offsets it meets its queues.

    Attributes:
        begin: where the log ends before it.
        used: numbers of the source's routes that its records belong to.
        next_offsets: of each of these, the offset that its first record gets.
        extent: its placement without the places of the records, which would not fit into memory.
    """

    source: Source
    portion: Portion
    begin: int
    used: I8
    next_offsets: I8
    extent: Placement


class BatchBlock:
    """A block of the records of several sources, in their order. Used under the append lock.

    Args:
        log: where it goes.
        next_offsets: gives the next offsets of some queues.
        stamp: what the records get.

    Attributes:
        rows, bytes: of all records.
        begin: where the first record goes; -1 where there is none.
        last: where the last record goes; -1 where there is none.
        end: where the log ends with the block.
        timestamp: storeTimestamp of the records.
    """

    def __init__(
        self,
        log: CommitLogWriter,
        next_offsets: Callable[[Sequence[Route]], I8],
        stamp: Stamp,
    ) -> None:
        self._log = log
        self._next_offsets = next_offsets
        self._stamp = stamp
        self._next: dict[Route, int] = {}
        self.rows = self.bytes = 0
        self.timestamp = stamp.timestamp
        self.begin = self.last = -1
        self.end = log.max_offset
        self._parts: list[_Part] = []
        self._lowest: int | None = None
        self._files: HandleCache[int] = HandleCache(os.close, _OPEN_FILES)
        # Queues and index can still be busy with the part before the one that is being read.
        self._buffers: list[U1] = []

    def add(self, source: Source) -> None:
        """Place the records of a source behind the others; nothing is written.

        Raises:
            TooLargeError: a record does not fit into a segment.
            RefusedError: a stage could not be read back.
        """
        for portion in source.portions:
            self._parts.append(self._place(source, portion))

    def write(self) -> None:
        """Write all of the block, hidden. Nothing of it is flushed.

        Raises:
            StoreWriteError: that failed: `erase` it.
            RefusedError: a stage could not be read back: `erase` it.
        """
        reach("commit.before_write")
        longest = max(part.portion.size for part in self._parts)
        self._buffers = [np.empty(longest, np.uint8), np.empty(longest, np.uint8)]
        self._lowest = len(self._parts)
        first, placement, _ = self._stamped(0, self._buffers[0])
        self._log.hide(placement, first.block.data, 0)
        reach("commit.after_head")
        for number in reversed(range(len(self._parts))):
            self._lowest = number
            appended, placement, _ = self._stamped(number, self._buffers[0])
            if number == 0:
                appended.block.data[_MAGIC] = 0
            self._log.write_hidden(placement, appended.block.data, appended.block.starts)
            reach("commit.after_portion")

    def publish(self) -> None:
        """Make the block, written and flushed, part of the log. That is not flushed.

        Raises:
            StoreWriteError: that failed, and whether the block is seen after a crash is open.
        """
        self._log.publish(self.end)

    def erase(self) -> bool:
        """Take back what was written: zeros in its place, the head last.

        Returns:
            Whether there was anything.

        Raises:
            StoreWriteError: that failed.
        """
        if self._lowest is None:
            return False
        for number in reversed(range(len(self._parts))):
            if number >= self._lowest or number == 0:
                self._log.erase(self._parts[number].extent)
        return True

    def appended(self) -> Iterator[tuple[Appended, I8]]:
        """The block's parts, ascending, for queues and index, with their queues' next offsets.

        The bytes of a part are valid until the one after the next is asked for.

        Raises:
            RefusedError: a stage could not be read back.
        """
        for number in range(len(self._parts)):
            appended, _, next_offsets = self._stamped(number, self._buffers[number % 2])
            yield appended, next_offsets

    def close(self) -> None:
        """Close the files of the stages."""
        self._files.close()

    def _place(self, source: Source, portion: Portion) -> _Part:
        rows = source.read_rows(portion, self._files)
        placement = self._placement(rows, self.end)
        if self.begin < 0:
            self.begin = int(placement.physical[0])
        self.last = int(placement.physical[-1])
        count = len(source.routes)
        used = np.flatnonzero(np.bincount(rows.route_of, minlength=count))
        routes = [source.routes[n] for n in used.tolist()]
        new = [route for route in routes if route not in self._next]
        self._next.update(zip(new, self._next_offsets(new).tolist(), strict=True))
        first = np.array([self._next[route] for route in routes], np.int64)
        taken = np.bincount(rows.route_of[rows.queued], minlength=count)[used]
        self._next.update(zip(routes, (first + taken).tolist(), strict=True))
        extent = replace(placement, physical=placement.physical[:0])
        part = _Part(source, portion, self.end, used, first, extent)
        self.end = placement.end
        self.rows += portion.count
        self.bytes += portion.size
        return part

    def _placement(self, rows: Rows, begin: int) -> Placement:
        return place(rows.sizes, begin, self._log.segment_size)

    def _stamped(self, number: int, buffer: U1) -> tuple[Appended, Placement, I8]:
        """A part's records as they are to stand in the log, their places, and what comes next."""
        part = self._parts[number]
        source, timestamp = part.source, self.timestamp
        rows = source.read_rows(part.portion, self._files)
        data = source.read_records(part.portion, buffer, self._files)
        placement = self._placement(rows, part.begin)
        numbers = np.zeros(len(source.routes), np.int32)
        numbers[part.used] = np.arange(len(part.used))
        route_of = numbers[rows.route_of]
        next_offsets = part.next_offsets.copy()
        queue_offset = number_rows(route_of, rows.queued, next_offsets)
        starts = rows.starts
        stamp_records(data, starts, queue_offset, placement.physical, timestamp, self._stamp.host)
        routes = tuple(source.routes[n] for n in part.used.tolist())
        block = Block(data, starts, rows.sizes, routes, route_of, rows.tags_code, rows.queued)
        appended = Appended(block, placement.physical, queue_offset, timestamp)
        return appended, placement, next_offsets
