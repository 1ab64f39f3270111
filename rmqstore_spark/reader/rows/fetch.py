"""Reads records from the log: bodies into the buffer of their column, the rest separately.

The body is most of a record, and its column is a copy of what the log holds. So if the records of a
batch lie close together, the log is read directly into the buffer of the body column, in
stretches; those of local files fit the processor's cache. The bodies are then moved together over
the bytes between them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference.plain import CHECK_BODY, CHECK_RECORD
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import I4, I8, U1, Spans
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.rows.selection import Selection

_WASTE: Final = 0.25


class RecordFetcher:
    """Reads the records of batches of entries. Its result is valid until the next batch.

    Args:
        log: the log that holds the records.
        bodies: return the bodies; otherwise they are skipped.
        check_crc: check the CRC of returned bodies, and of whole records that have one.
    """

    def __init__(self, log: CommitLog, *, bodies: bool, check_crc: bool) -> None:
        self._log = log
        self._wants_bodies = bodies
        self._checks = ((CHECK_BODY if bodies else 0) | CHECK_RECORD) if check_crc else 0
        self._scratch: U1 | None = None
        self._rest = np.empty(0, np.uint8)

    def fetch(self, batch: Selection) -> Records:
        """Read the records of a batch, ascending by physical offset.

        The `status` of each record says whether it is sound.

        Raises:
            SegmentExpiredError: a file has expired.
        """
        total = int(batch.sizes.sum(dtype=np.int64))
        if len(self._rest) < total:
            self._rest = np.empty(total, np.uint8)
        space = _Space(len(batch), self._rest, self._checks)
        if self._is_dense(batch, total):
            return self._dense(batch, space)
        self._scratch, positions = self._log.read_entries(batch.offsets, batch.sizes, self._scratch)
        bodies = _body_buffer(total if self._wants_bodies else 0)
        space.absorb(self._scratch, positions, batch.sizes, 0, len(batch), bodies)
        return space.records(bodies if self._wants_bodies else None)

    def _is_dense(self, batch: Selection, total: int) -> bool:
        """Return whether the records lie in one file, in order, with little between them."""
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        end = last + int(batch.sizes[-1])
        if end - first > total * (1 + _WASTE):
            return False
        segment = self._log.segment_at(first)
        ends = batch.offsets[:-1] + batch.sizes[:-1]
        return (
            segment is not None and end <= segment.end and bool((batch.offsets[1:] >= ends).all())
        )

    def _dense(self, batch: Selection, space: _Space) -> Records:
        offsets, sizes = batch.offsets, batch.sizes
        ends = offsets + sizes
        span = int(ends[-1] - offsets[0])
        stretch = self._log.stretch
        room = span if self._wants_bodies else min(span, 2 * stretch + int(sizes.max()))
        if self._wants_bodies:
            target = _body_buffer(room)
        else:
            if self._scratch is None or len(self._scratch) < room:
                self._scratch = np.empty(room, np.uint8)
            target = self._scratch
        bodies = target if self._wants_bodies else target[:0]
        positions = np.empty(len(batch), np.int64)
        first = 0
        while first < len(batch):
            begin = int(offsets[first])
            last = max(int(np.searchsorted(ends, begin + stretch, side="right")), first + 1)
            length = int(ends[last - 1]) - begin
            at = space.tail
            self._log.read_into(begin, target[at : at + length])
            positions[first:last] = offsets[first:last] - (begin - at)
            space.absorb(target, positions, sizes, first, last, bodies)
            first = last
        return space.records(bodies if self._wants_bodies else None)


def _body_buffer(size: int) -> U1:
    """Allocate from Arrow's memory pool, which reuses its memory."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


class _Space:
    """The memory for the parts of n records, and its fill level."""

    def __init__(self, n: int, rest: U1, checks: int) -> None:
        self._rest = rest
        self._checks = checks
        self._body_at, self._rest_at = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._longs, self._ints = np.empty((5, n), np.int64), np.empty((14, n), np.int32)
        self.tail = 0
        self._rest_tail = 0

    def absorb(
        self, buffer: U1, positions: I8, sizes: I4, first: int, last: int, bodies: U1
    ) -> None:
        self.tail, self._rest_tail = kernel.active.absorb(
            buffer, positions, sizes, first, last, self._checks, bodies, self.tail, self._rest,
            self._rest_tail, self._body_at, self._rest_at, self._longs, self._ints,
        )  # fmt: skip

    def records(self, bodies: U1 | None) -> Records:
        parted = None
        if bodies is not None:
            parted = Spans(bodies, self._body_at, self._ints[8], settled=True)
        rest = self._rest[: self._rest_tail]
        return Records(rest, self._rest_at, self._longs, self._ints, parted, crc_checked=True)
