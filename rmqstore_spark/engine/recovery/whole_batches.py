"""Spark's batches in the log of a group: each counts as a whole, or not at all.

A leader proposes a batch as one entry per record. If it ceases to lead within a batch, the log has
the beginning of it for ever: what is committed is never taken back. The next leader begins its term
with an entry of its own, so all members see that the rest will not come, and none of them shows
such records. Spark commits the batch again, because its marker, the last record, is not there.

The records keep their queue offsets, with void entries in the queues: members of RocketMQ know
nothing of batches, and have put these records there. A leader that gave the offsets again would
have its messages passed over by them.

The first record of a batch says where the batch ends (`layout.record.format`). All of its records
have one storeTimestamp, and their entries one term.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rmqstore_spark.engine.recovery.redispatch import LogBlock, log_blocks
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.format import batch_ends, decode_records
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head

_log = logging.getLogger(__name__)


class _Open(NamedTuple):
    """A batch of which not all was seen.

    Attributes:
        begin: position of its first entry.
        first: physical offset of its first record.
        end: physical offset where it ends.
        timestamp: storeTimestamp of its records.
        term: term of its entries.
    """

    begin: int
    first: int
    end: int
    timestamp: int
    term: int


class WholeBatches:
    """Reads the records of a group's log, in order, and finds batches.

    Args:
        at: position up to which the log was read before; no batch is open there.

    Attributes:
        seen: position up to which the log was read.
        at: position up to which records were given; what follows may be a part of a batch.
    """

    def __init__(self, at: int) -> None:
        self.seen = self.at = at
        self._batch: _Open | None = None

    def read(self, log: CommitLog, end: int) -> Iterator[LogBlock]:
        """Yield the records up to a position; those of a batch when it is known to be whole or not.

        Args:
            log: the log, which is committed up to that position.
            end: the position.
        """
        for part in log_blocks(log, self.seen, end):
            yield from self._take(log, part, end)
        self.seen = end
        self.at = end if self._batch is None else self._batch.begin

    @property
    def is_within(self) -> bool:
        """Whether a batch is open at the position up to which the log was read."""
        return self._batch is not None

    def pass_over(self, end: int) -> None:
        """Take records up to a position as read. They belong to no batch, and none is open."""
        assert self._batch is None, "what follows belongs to a batch, or shows that its rest lacks"
        self.seen = self.at = end

    def _take(self, log: CommitLog, part: LogBlock, end: int) -> Iterator[LogBlock]:
        places, count = part.physical_offset, len(part.block)
        ends, terms = batch_ends(part.records, places), part.terms
        if terms is None:  # of before the group: its recovery has cut what is not whole
            assert self._batch is None, "the old log is before the group's"
            yield part
            return
        if self._batch is None and not ends.any() and int(places[-1] + part.block.sizes[-1]) == end:
            yield part  # the last one that is read, so its bytes stay as they are
            return
        times = part.records.store_timestamp
        stops = places + part.block.sizes
        row = 0
        while row < count:
            batch = self._batch
            if batch is None:
                heads = np.flatnonzero(ends[row:])
                head = row + int(heads[0]) if len(heads) else count
                if row < head:
                    yield rows_of(part, row, head)
                row = head
                if head == count:
                    return
                first = int(places[head])
                named = int(ends[head]), int(times[head]), int(terms[head])
                batch = self._batch = _Open(log.unit_start(first), first, *named)
                row = head + 1
                if stops[head] == batch.end:
                    yield from self._close(log, batch)
                continue
            others = (terms[row:] != batch.term) | (ends[row:] != 0)
            others |= (times[row:] != batch.timestamp) | (stops[row:] > batch.end)
            stop = row + int(np.argmax(others)) if others.any() else count
            row = stop
            if stop and stops[stop - 1] == batch.end:
                yield from self._close(log, batch)
            elif stop < count:
                _log.warning(
                    "The records from %d to %d belong to a Spark batch whose leader ceased to lead "
                    "before all of it was committed: they do not count.",
                    batch.first, int(places[stop]),
                )  # fmt: skip
                end = log.unit_start(int(places[stop]))
                for void in self._close(log, batch._replace(end=end)):
                    yield replace(void, is_void=True)

    def _close(self, log: CommitLog, batch: _Open) -> Iterator[LogBlock]:
        self._batch = None
        for part in log_blocks(log, batch.begin, batch.end):
            yield rows_of(part, 0, len(part.block))


def rows_of(part: LogBlock, first: int, last: int) -> LogBlock:
    """Return some records of a block, `last` excluded, with bytes of their own."""
    block = part.block
    begin = int(block.starts[first])
    end = int(block.starts[last - 1]) + int(block.sizes[last - 1])
    data = block.data[begin:end].copy()
    mine = read_block(data, max_rows=last - first)
    records = decode_records(data, mine.starts, mine.sizes)
    return LogBlock(mine, records, part.physical_offset[first:last], is_void=part.is_void)


def start_outside(log: CommitLog, start: int) -> int:
    """Return a position not after `start` at which no batch is open.

    Args:
        log: the log.
        start: where a segment begins, or the log.
    """
    segments = log.segments()
    starts = [segment.start for segment in segments]
    if start not in starts:
        return start
    number = starts.index(start)
    # A batch that reaches over the begins of two segments has one storeTimestamp there.
    while number and _time(log, number) == _time(log, number - 1):
        number -= 1
    return segments[max(number - 1, 0)].start if number else start


def _time(log: CommitLog, number: int) -> int:
    segment = log.segments()[number]
    head = record_head(log, segment.start + segment.lead)
    return -1 if head is None else int(head.store_timestamp[0])
