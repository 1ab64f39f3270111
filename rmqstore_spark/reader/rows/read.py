"""Reads splits of queues: selects entries, reads their records, and decodes them into batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.layout.spans import text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.rows.decoder import Decoder
from rmqstore_spark.reader.rows.fetch import RecordFetcher
from rmqstore_spark.reader.rows.merge import merged
from rmqstore_spark.reader.rows.selection import (
    Selection,
    TagFilter,
    batches,
    say_lost,
    unexpired,
    usable_entries,
)
from rmqstore_spark.reader.rows.splits import LogSplit, QueueRange, QueueSplit

_log = logging.getLogger(__name__)

_BLOCK: Final = 10_000
_FILTERED_BLOCK: Final = 300_000


class QueueSource(Protocol):
    """The part of a store that these readers need."""

    broker_name: str
    log: CommitLog

    def queue(self, topic: str, queue_id: int, *, alone: bool = False) -> Queue:
        """Return a queue of the store; see `Store.queue`."""
        ...

    def known_end(self) -> int:
        """Return how far the log is known to have reached; 0 if nothing tells it."""
        ...

    def published_end(self) -> int:
        """Return the offset below which what looks like an unpublished block is damage."""
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
    queue = store.queue(split.range.topic, split.range.queue_id, alone=True)
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
        for batch in batches(selection, options.batch_rows, options.batch_bytes):
            yield from reader.read(batch)


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
            error = log.gone(int(batch.offsets[damaged][0]), int(batch.sizes[damaged][0]))
            if self._options.mode == "FAILFAST":
                raise error
            _log.warning("DROPMALFORMED: left out %d record(s): %s", damaged.sum(), error)
        return batch.take(np.flatnonzero(there))

    def _decode(self, batch: Selection) -> Iterator[pa.RecordBatch]:
        if not len(batch):
            return
        yield from self._decoder.decode(
            self._fetcher.fetch(batch),
            expected_offset=batch.offsets,
            expected_size=batch.sizes,
            identity=batch.identity,
        )
