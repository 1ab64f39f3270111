"""Writes the rows of a Spark batch to the log as one block, visible as a whole or not at all.

The block can be larger than memory, so it is processed in parts, each a portion of a stage, and in
three passes. Only the second one touches the records. What is in memory is stamped there, and
copied once, to the log.

1. Ascending, to find the place and the number of each record, from the stages' tables of rows.
2. Descending, to stamp the records and write them behind a hidden head.
3. Ascending again, after that head was published, to put the records into queues and index. What
   that takes is made in the second pass, beside the writes, as far as it fits into memory; the rest
   from the stages' tables of rows and keys.

None of them needs the append lock: the place is reserved (`log.reserved`), and nobody else numbers
records of its queues. See docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.append.commit import Commit
from rmqstore_spark.engine.batches.staged_records import Portion, Rows
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.placement import Placement, place
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.record.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.record.delayed import due_codes
from rmqstore_spark.layout.record.format import write_batch_end
from rmqstore_spark.layout.spans import I4, I8, U1

_OPEN_FILES: Final = 64
_KEPT_BYTES: Final = 16 << 20
"""Bytes of what the third pass takes that the second one keeps for it."""
_KEPT_ROW: Final = 64
_KEPT_KEY: Final = 8
"""Bytes that are kept of a record, about, and of a key."""


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
    """

    rows: Rows
    placement: Placement
    route_of: I4
    queue_offset: I8


class BatchBlock:
    """A block with the records of several sources, in order.

    Args:
        commit: its place, its queues, and its storeTimestamp.
        segment_size: bytes of a segment.
        host: address and port of the store, for the records.
        lead: bytes before each record: those of the header of a DLedger entry.

    Attributes:
        rows, bytes: number and bytes of all records.
        begin: where the first record goes; -1 if there is none.
        last: where the last record goes; -1 if there is none.
        end: where the log ends with the block.
        timestamp: storeTimestamp of the records.
        next_offsets: the next offset of each of its queues.
    """

    def __init__(self, commit: Commit, segment_size: int, host: bytes, lead: int = 0) -> None:
        self._lead = lead
        self._reserved = commit.reserved
        self._segment_size = segment_size
        self._host = host
        self.next_offsets: dict[Route, int] = dict(commit.next_offsets)
        self.rows = self.bytes = 0
        self.timestamp = commit.timestamp
        self.begin = self.last = -1
        self.end = commit.reserved.begin
        self._parts: list[_Part] = []
        self._lowest: int | None = None
        self._kept: dict[int, Appended] = {}  # by the number of the part
        self._kept_bytes = 0
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
        assert sum(part.portion.count for part in self._parts) == self.rows, (
            "a batch has lost some of its rows"
        )
        reach("commit.before_write")
        if self._lowest is None:
            self._lowest = len(self._parts)
        # The first part is prepared once: its head is written first, the whole part last.
        first, data = self._prepared(0, np.empty(self._parts[0].portion.size, np.uint8))
        data = data.copy()  # changed: another commit of the stage needs its first record as it was
        write_batch_end(data, int(first.rows.starts[0]), self.end)
        self._reserved.hide(first.placement, data, 0)
        reach("commit.after_head")
        with ThreadPoolExecutor(1, "rmqstore-read-ahead") as reader:
            for part in self._read_ahead(reader):
                self._write_part(*part)
        self._write_part(0, first, data)

    def renew_time(self, timestamp: int, marker: StagedSource) -> None:
        """Give the records another storeTimestamp, which they have when they are written again.

        Args:
            timestamp: milliseconds.
            marker: replaces the last source, which was a marker of the same size.
        """
        (portion,) = marker.portions
        last = self._parts[-1]
        assert (portion.count, portion.size) == (last.portion.count, last.portion.size), (
            f"a marker of {last.portion.size} bytes is to be replaced by one of {portion.size}"
        )
        self._parts[-1] = replace(last, source=marker, portion=portion)
        self.timestamp = timestamp
        self._kept.clear()
        self._kept_bytes = 0

    def portions(self) -> Iterator[tuple[Placement, U1, I8]]:
        """Yield the places, bytes and starts of all records, stamped, a portion at a time."""
        for number, part in enumerate(self._parts):
            known, data = self._stamped(number, np.empty(part.portion.size, np.uint8))
            if number == 0:
                data = data.copy()  # another commit of the stage needs its first record as it was
                write_batch_end(data, int(known.rows.starts[0]), self.end)
            yield known.placement, data, known.rows.starts

    def flush(self) -> None:
        """Flush the block.

        Raises:
            StoreWriteError: the flush failed.
        """
        self._reserved.flush()

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
                self._reserved.erase(self._parts[number].extent)
        self._lowest = None
        return True

    def jobs(self) -> list[PartJob]:
        """Return what puts the block's parts into queues and index, ascending."""
        return [PartJob(self, number, part) for number, part in enumerate(self._parts)]

    def appended(self, number: int) -> Appended:
        """Return the records of a part, without their bytes.

        Raises:
            RefusedError: a stage could not be read back.
        """
        kept = self._kept.pop(number, None)
        part = self._parts[number]
        return kept if kept is not None else self._appended(part, self._known(part))

    def _appended(self, part: _Part, known: _Known) -> Appended:
        rows, routes = known.rows, tuple(part.source.routes[n] for n in part.used.tolist())
        codes = due_codes(routes, known.route_of, rows.tags_code, self.timestamp)
        nothing = np.empty(0, np.uint8)
        block = Block(nothing, rows.starts, rows.sizes, routes, known.route_of, codes, rows.queued)
        keys = part.portion.read_keys(self._files)
        placed = known.placement.physical
        first = part.next_offsets
        return Appended(block, placed, known.queue_offset, self.timestamp, keys, first)

    def close(self) -> None:
        """Close the files of the stages and of the log."""
        self._kept.clear()
        self._files.close()
        self._reserved.close()

    def _place(self, source: StagedSource, portion: Portion) -> _Part:
        rows = portion.read_rows(self._files)
        placement = self._placement(rows, self.end)
        if self.begin < 0:
            self.begin = int(placement.physical[0])
        self.last = int(placement.physical[-1])
        count = len(source.routes)
        used = np.flatnonzero(np.bincount(rows.route_of, minlength=count))
        routes = [source.routes[n] for n in used.tolist()]
        first = np.array([self.next_offsets[route] for route in routes], np.int64)
        taken = np.bincount(rows.route_of[rows.queued], minlength=count)[used]
        self.next_offsets.update(zip(routes, (first + taken).tolist(), strict=True))
        extent = replace(placement, physical=placement.physical[:0])
        part = _Part(source, portion, self.end, used, first, extent)
        self.end = placement.end
        self.rows += portion.count
        self.bytes += portion.size
        return part

    def _placement(self, rows: Rows, begin: int) -> Placement:
        return place(rows.sizes, begin, self._segment_size, lead=self._lead)

    def _write_part(self, number: int, known: _Known, data: U1) -> None:
        assert self._lowest is not None, "a part is written before the head that hides it"
        self._lowest = min(self._lowest, number)
        self._reserved.write(known.placement, data, known.rows.starts)
        reach("commit.after_portion")

    def _read_ahead(self, reader: Executor) -> Iterator[tuple[int, _Known, U1]]:
        """Yield all parts but the first, descending. While one is written, the next is prepared.

        The bytes of a part are valid until the next part is requested.
        """
        size = max(part.portion.size for part in self._parts)
        buffers = cycle([np.empty(size, np.uint8), np.empty(size, np.uint8)])
        coming: deque[tuple[int, Future[tuple[_Known, U1]]]] = deque()
        for number in reversed(range(1, len(self._parts))):
            coming.append((number, reader.submit(self._prepared, number, next(buffers))))
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
        queue_offset = number_rows(route_of, rows.queued, part.next_offsets.copy())
        placement = self._placement(rows, part.begin)
        assert placement.end == part.extent.end, (
            f"a portion of a batch was to end at {part.extent.end}, and ends at {placement.end}: "
            "its stage has changed"
        )
        return _Known(rows, placement, route_of, queue_offset)

    def _prepared(self, number: int, buffer: U1) -> tuple[_Known, U1]:
        """Return a part as `_stamped` does, and keep what the third pass takes if there is room."""
        known, data = self._stamped(number, buffer)
        if self._kept_bytes < _KEPT_BYTES:
            appended = self._appended(self._parts[number], known)
            assert appended.hashes is not None, "the keys of a staged record are not known"
            self._kept_bytes += _KEPT_ROW * len(known.rows.sizes)
            self._kept_bytes += _KEPT_KEY * len(appended.hashes[0])
            self._kept[number] = appended
        return known, data

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


class PartJob:
    """Puts a part of a published block into queues and index. It is read when its turn comes."""

    def __init__(self, block: BatchBlock, number: int, part: _Part) -> None:
        self._block = block
        self._number = number
        self._part = part

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return self._part.portion.size

    @property
    def store_timestamp(self) -> int:
        """The storeTimestamp of the records, milliseconds."""
        return self._block.timestamp

    @property
    def end(self) -> int:
        """Physical offset of the byte after the last record."""
        return self._part.extent.end

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries."""
        self._appended.to_queues(queues)

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        return self._appended.keys()

    @cached_property
    def _appended(self) -> Appended:
        return self._block.appended(self._number)
