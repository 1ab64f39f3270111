"""Writes the rows of a Spark batch to the log as one block, visible as a whole or not at all.

The block can be larger than memory, so it is processed in parts, each a portion of a stage, and in
three passes. Only the second one touches the records. What is in memory is stamped there, and
copied once, to the log.

1. Ascending, to find the place and the number of each record, from the stages' tables of rows.
2. Descending, to stamp the records and write them behind a hidden head.
3. Ascending again, after that head was published, to hand the records to queues and index, from
   the stages' tables of rows and keys.

See docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.batches.staged_records import Portion, Rows
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.log.placement import Placement, place
from rmqstore_spark.files.base import HandleCache
from rmqstore_spark.layout.record.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.record.delayed import due_codes
from rmqstore_spark.layout.record.format import write_batch_end
from rmqstore_spark.layout.spans import I4, I8, U1

_OPEN_FILES: Final = 64


class StagedSource(Protocol):
    """Provides records for a block: a stage, or the marker of its commit."""

    @property
    def routes(self) -> Sequence[Route]:
        """The queues of the records."""
        ...

    @property
    def portions(self) -> Sequence[Portion]:
        """The records, in parts."""
        ...


@dataclass(frozen=True)
class _Part:
    """A portion, its place in the log, and its first offset in each of its queues.

    Attributes:
        begin: where the log ends before it.
        used: numbers of the source's routes that its records belong to.
        next_offsets: for each of these, the offset that its first record gets.
        extent: its placement without the places of the records, which would not fit into memory.
    """

    source: StagedSource
    portion: Portion
    begin: int
    used: I8
    next_offsets: I8
    extent: Placement


@dataclass(frozen=True)
class _Known:
    """The n records of a part, without their bytes.

    Attributes:
        rows: their rows in the stage's table.
        placement: their places in the log.
        route_of: n, numbers among the routes that the part uses.
        queue_offset: n, the offset of each in its queue.
        next_offsets: the next offset of each of the part's queues.
    """

    rows: Rows
    placement: Placement
    route_of: I4
    queue_offset: I8
    next_offsets: I8


class BatchBlock:
    """A block with the records of several sources, in order. Used under the append lock.

    Args:
        log: the log.
        next_offsets: returns the next offsets of some queues.
        timestamp: storeTimestamp of the records; later than that of every record before the block.
        host: address and port of the store, for the records.

    Attributes:
        rows, bytes: number and bytes of all records.
        begin: where the first record goes; -1 if there is none.
        last: where the last record goes; -1 if there is none.
        end: where the log ends with the block.
        timestamp: storeTimestamp of the records.
    """

    def __init__(
        self,
        log: CommitLogWriter,
        next_offsets: Callable[[Sequence[Route]], I8],
        timestamp: int,
        host: bytes,
    ) -> None:
        self._log = log
        self._next_offsets = next_offsets
        self._host = host
        self._next: dict[Route, int] = {}
        self.rows = self.bytes = 0
        self.timestamp = timestamp
        self.begin = self.last = -1
        self.end = log.max_offset
        self._parts: list[_Part] = []
        self._lowest: int | None = None
        self._files: HandleCache[int] = HandleCache(os.close, _OPEN_FILES)

    def add(self, source: StagedSource) -> None:
        """Place the records of a source after the others. Nothing is written.

        Raises:
            TooLargeError: a record does not fit into a segment.
            RefusedError: a stage could not be read back.
        """
        for portion in source.portions:
            self._parts.append(self._place(source, portion))

    def write(self) -> None:
        """Write the whole block, hidden. Nothing of it is flushed.

        Raises:
            StoreWriteError: the write failed: `erase` the block.
            RefusedError: a stage could not be read back: `erase` the block.
        """
        begin = self._parts[0].begin
        assert begin == self._log.max_offset, (
            f"a batch was placed at {begin}, but the log ends at {self._log.max_offset}"
        )
        assert sum(part.portion.count for part in self._parts) == self.rows, (
            "a batch has lost some of its rows"
        )
        reach("commit.before_write")
        self._lowest = len(self._parts)
        # The first part is prepared once: its head is written first, the whole part last.
        first, data = self._stamped(0, np.empty(self._parts[0].portion.size, np.uint8))
        data = data.copy()  # changed: another commit of the stage needs its first record as it was
        write_batch_end(data, int(first.rows.starts[0]), self.end)
        self._log.hide(first.placement, data, 0)
        reach("commit.after_head")
        with ThreadPoolExecutor(1, "rmqstore-read-ahead") as reader:
            for part in self._read_ahead(reader):
                self._write_part(*part)
        self._write_part(0, first, data)

    def publish(self) -> None:
        """Make the block part of the log. It must have been flushed; this change is not.

        Raises:
            StoreWriteError: the write failed. It is unknown whether a crash leaves the block
                visible.
        """
        self._log.publish(self.end)

    def erase(self) -> bool:
        """Overwrite with zeros what was written, the head last.

        Returns:
            Whether writing had begun.

        Raises:
            StoreWriteError: the write failed.
        """
        if self._lowest is None:
            return False
        for number in reversed(range(len(self._parts))):
            if number >= self._lowest or number == 0:
                self._log.erase(self._parts[number].extent)
        return True

    def appended(self) -> Iterator[tuple[Appended, I8]]:
        """Yield the block's parts, ascending, each with the next offsets of its queues.

        Raises:
            RefusedError: a stage could not be read back.
        """
        nothing = np.empty(0, np.uint8)
        for part in self._parts:
            known = self._known(part)
            rows, routes = known.rows, tuple(part.source.routes[n] for n in part.used.tolist())
            codes = due_codes(routes, known.route_of, rows.tags_code, self.timestamp)
            block = Block(
                nothing, rows.starts, rows.sizes, routes, known.route_of, codes, rows.queued
            )
            keys = part.portion.read_keys(self._files)
            yield (
                Appended(block, known.placement.physical, known.queue_offset, self.timestamp, keys),
                known.next_offsets,
            )

    def close(self) -> None:
        """Close the files of the stages."""
        self._files.close()

    def _place(self, source: StagedSource, portion: Portion) -> _Part:
        rows = portion.read_rows(self._files)
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

    def _write_part(self, number: int, known: _Known, data: U1) -> None:
        self._lowest = number
        self._log.write_hidden(known.placement, data, known.rows.starts)
        reach("commit.after_portion")

    def _read_ahead(self, reader: Executor) -> Iterator[tuple[int, _Known, U1]]:
        """Yield all parts but the first, descending. While one is written, the next is prepared.

        The bytes of a part are valid until the next part is requested.
        """
        size = max(part.portion.size for part in self._parts)
        buffers = cycle([np.empty(size, np.uint8), np.empty(size, np.uint8)])
        coming: deque[tuple[int, Future[tuple[_Known, U1]]]] = deque()
        for number in reversed(range(1, len(self._parts))):
            coming.append((number, reader.submit(self._stamped, number, next(buffers))))
            if len(coming) > 1:
                made, stamped = coming.popleft()
                yield made, *stamped.result()
        for made, stamped in coming:
            yield made, *stamped.result()

    def _known(self, part: _Part) -> _Known:
        """Read a part's rows from the stage's table, and number them."""
        rows = part.portion.read_rows(self._files)
        numbers = np.zeros(len(part.source.routes), np.int32)
        numbers[part.used] = np.arange(len(part.used))
        route_of = numbers[rows.route_of]
        next_offsets = part.next_offsets.copy()
        queue_offset = number_rows(route_of, rows.queued, next_offsets)
        placement = self._placement(rows, part.begin)
        assert placement.end == part.extent.end, (
            f"a portion of a batch was to end at {part.extent.end}, and ends at {placement.end}: "
            "its stage has changed"
        )
        return _Known(rows, placement, route_of, queue_offset, next_offsets)

    def _stamped(self, number: int, buffer: U1) -> tuple[_Known, U1]:
        """Return a part, and its records as they will be in the log."""
        part = self._parts[number]
        known = self._known(part)
        data = part.portion.read_records(buffer, self._files)
        assert len(data) == int(known.rows.sizes.sum()), (
            f"the rows of a stage name {int(known.rows.sizes.sum())} bytes of records, and it has "
            f"{len(data)}"
        )
        stamp_records(
            data, known.rows.starts, known.queue_offset, known.placement.physical,
            self.timestamp, self._host,
        )  # fmt: skip
        return known, data
