"""Reads splits of queues: selects entries, reads their records, and decodes them into batches.

The body is most of a record, and its column is a copy of what the log holds. So if the records of a
batch lie close together, the log is read directly into the buffer of the body column, in
stretches; those of local files fit the processor's cache. The bodies are then moved together over
the bytes between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.files.systems.spans import slices_of_size
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference.plain import CHECK_BODY, CHECK_RECORD
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import I4, I8, U1, Spans, text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.options import LogSplit, QueueRange, QueueSplit, ReadOptions
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.rows.decoder import Decoder
from rmqstore_spark.reader.rows.merge import merged
from rmqstore_spark.reader.rows.selection import (
    Selection,
    TagFilter,
    say_lost,
    unexpired,
    usable_entries,
)

_log = logging.getLogger(__name__)

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


_BLOCK: Final = 10_000
_FILTERED_BLOCK: Final = 300_000


class QueueSource(Protocol):
    """The part of a store that these readers need."""

    broker_name: str
    log: CommitLog

    def queue(self, topic: str, queue_id: int) -> Queue:
        """Return a queue of the store; see `Store.queue`."""
        ...

    def known_end(self) -> int:
        """Return how far the log is known to have reached; 0 if nothing tells it."""
        ...

    def published_end(self) -> int:
        """Return the offset below which what looks like an unpublished block is damage."""
        ...

    def is_open_end(self, offset: int) -> bool:
        """Return whether the log of a store in use may end at an offset; see `Store`."""
        ...

    def refresh(self, *, topology: bool = True) -> None:
        """List the store's files again."""
        ...


def read_queue_split(
    store: QueueSource, split: QueueSplit, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range of one queue, in its order.

    Raises:
        SegmentExpiredError: messages have expired, and `fail_on_data_loss` is set.
        CorruptStoreError: an entry or a record is damaged, and the mode is FAILFAST.
    """
    tags = TagFilter(options.tags) if options.tags is not None else None
    queue = store.queue(split.range.topic, split.range.queue_id)
    return read_entries_of(store, _selections(queue, split.range, tags, options), options)


def read_log_split(
    store: QueueSource, split: LogSplit, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read the messages of many queues in a stretch of the log, in its order.

    Raises:
        SegmentExpiredError, CorruptStoreError: as `read_queue_split`.
    """
    queues = [store.queue(wanted.topic, wanted.queue_id) for wanted in split.ranges]
    return read_entries_of(store, merged(queues, split, options), options)


def _selections(
    queue: Queue, wanted: QueueRange, tags: TagFilter | None, options: ReadOptions
) -> Iterator[Selection]:
    topics, ids = text_pool([queue.topic]), np.array([queue.queue_id], np.int32)
    block = _BLOCK if tags is None else _FILTERED_BLOCK
    wanted = unexpired(queue, wanted, options)
    for first in range(wanted.start, wanted.end, block):
        entries, slots = usable_entries(queue, first, min(first + block, wanted.end), options)
        if tags is not None:
            keep = tags.may_match(queue, entries)
            entries, slots = entries[keep], slots[keep]
        yield Selection(
            entries.offsets,
            entries.sizes,
            np.zeros(len(entries), np.int32),
            slots,
            topics,
            ids,
        )


def read_entries_of(
    store: QueueSource, selections: Iterator[Selection], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read and decode the records of selected entries."""
    reader = _Reader(store, options)
    for selection in selections:
        sizes = selection.sizes
        for part in slices_of_size(sizes, rows=options.batch_rows, size=options.batch_bytes):
            yield from reader.read(selection.take(part))


class _Reader:
    """Reads batches of entries, and reuses one buffer for all of them."""

    def __init__(self, store: QueueSource, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._fetcher = RecordFetcher(
            store.log, bodies="body" in options.columns, check_crc=options.check_crc
        )
        self._decoder = Decoder(store.broker_name, options, store.log.place)

    def read(self, batch: Selection) -> Iterator[pa.RecordBatch]:
        batch = self._present(batch)
        try:
            yield from self._decode(batch)
        except SegmentExpiredError:
            if self._options.fail_on_data_loss:
                raise
            # The file expired after `_present` had checked it.
            self._store.refresh(topology=False)
            yield from self._decode(self._present(batch))

    def _present(self, batch: Selection) -> Selection:
        """Return the part of a batch that the log holds. Raise or log an error for the rest."""
        log = self._store.log
        there = log.covers(batch.offsets, batch.sizes)
        if (batch.offsets[~there] >= log.file_end).any():
            # The queue may point into a file that was created after the log was listed.
            self._store.refresh(topology=False)
            there = log.covers(batch.offsets, batch.sizes)
        if there.all():
            return batch
        expired = ~there & log.missing(batch.offsets)
        damaged = ~there & ~expired
        if expired.any() and self._options.fail_on_data_loss:
            raise log.gone(int(batch.offsets[expired][0]), int(batch.sizes[expired][0]))
        if expired.any():
            say_lost(int(expired.sum()), "the range")
        if damaged.any():
            row = int(np.flatnonzero(damaged)[0])
            error = log.gone(int(batch.offsets[row]), int(batch.sizes[row]), batch.entry_name(row))
            if self._options.mode == "FAILFAST":
                raise error
            _log.warning("DROPMALFORMED: left out %d record(s): %s", damaged.sum(), error)
        return batch.take(np.flatnonzero(there))

    def _decode(self, batch: Selection) -> Iterator[pa.RecordBatch]:
        if not len(batch):
            return iter(())
        return self._decoder.decode(
            self._fetcher.fetch(batch),
            expected_offset=batch.offsets,
            expected_size=batch.sizes,
            identity=batch.identity,
        )
