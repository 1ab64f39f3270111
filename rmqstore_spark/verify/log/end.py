"""Finds the end of the log that is verified.

The bytes after it are left over from a crash, or still to be dispatched. A store that was closed
has dispatched all its records. So its log ends after the newest record that a queue names, at the
first offset without a whole record. If a queue names a record at that very offset, the log has lost
it: that is damage, not the end. If neither queues nor a checkpoint tell of the log, it ends after
its last whole record, and all that is written if there is none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import intact_end, record_head
from rmqstore_spark.reader.log.walk import Flaw, Stretch, walk_log
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.snapshot import QueueBounds

_HEAD: Final = 8


@dataclass(frozen=True)
class VerifiedEnd:
    """The end of the log, and why nothing counts after it."""

    end: int
    cause: str


def find_verified_end(store: Store, bounds: Sequence[QueueBounds]) -> VerifiedEnd:
    """Find the end of a store's log.

    Args:
        bounds: the offsets of all queues.
    """
    log = store.log
    lasts = [last for queue in bounds if (last := _last_record(store, queue)) is not None]
    if store.is_being_written:
        end = max((end for _, end in lasts), default=log.min_offset)
        return VerifiedEnd(min(end, log.file_end), "it may not have been dispatched yet")
    if log.dledger is not None:
        return VerifiedEnd(log.file_end, "it may not have been committed")
    end = _closed_end(store, bounds, lasts) if store.is_closed_cleanly else _killed_end(store)
    return VerifiedEnd(end, _cause(log, end))


def _killed_end(store: Store) -> int:
    try:
        return store.log_end()
    except CorruptStoreError:  # the checkpoint is invalid, which is reported elsewhere
        return intact_end(store.log, None)


def _closed_end(store: Store, bounds: Sequence[QueueBounds], lasts: list[tuple[int, int]]) -> int:
    log = store.log
    start = _known_end(log, lasts)
    if start is None:
        checkpoint = readable_checkpoint(store)
        return _last_end(log) if checkpoint is None else intact_end(log, checkpoint)
    end = start
    if not _is_unwritten(log, start):
        for item in walk_log(log, start, log.file_end):
            if isinstance(item, Flaw):
                end = item.offset
                break
            end = item.end
    if any(_names(store, queue, end) for queue in bounds):
        return max([end, *(last for first, last in lasts if first >= end)])
    return end


def _last_end(log: CommitLog) -> int:
    """Return the end of the log's last whole record; of its files, if they have none."""
    end = log.min_offset
    for item in walk_log(log, end, log.file_end):
        if isinstance(item, Stretch):
            end = item.end
    if end == log.min_offset and not _is_unwritten(log, end):
        return log.file_end
    return end


def readable_checkpoint(store: Store) -> Checkpoint | None:
    """Return the store's checkpoint; None if it is missing or invalid."""
    try:
        return store.checkpoint
    except CorruptStoreError:
        return None


def _cause(log: CommitLog, end: int) -> str:
    """Return why no record counts at an offset."""
    if _is_unwritten(log, end):
        return "nothing is written here"
    for item in walk_log(log, end, min(end + 1, log.file_end)):
        if isinstance(item, Flaw):
            return item.cause
    return "the log was cut before it"


def _is_unwritten(log: CommitLog, offset: int) -> bool:
    """Return whether nothing is written at an offset. Saves a search for the next record."""
    return log.segment_at(offset) is None or not any(log.read(offset, _HEAD))


def _last_record(store: Store, bounds: QueueBounds) -> tuple[int, int] | None:
    """Return where the record of a queue's last entry begins and ends, if the log can hold it."""
    last = bounds.max_offset
    if last == bounds.min_offset:
        return None
    try:
        entry = store.queue(bounds.topic, bounds.queue_id).live_entries(last - 1, last)
    except (SegmentExpiredError, CorruptStoreError):
        return None  # the check of the queue reports it
    begin, size = int(entry["physicalOffset"][0]), int(entry["size"][0])
    inside = store.log.covers(np.array([begin]), np.array([size], np.int32))
    return (begin, begin + size) if inside[0] else None


def _known_end(log: CommitLog, lasts: list[tuple[int, int]]) -> int | None:
    """Return the end of the newest whole record that is last in a queue; None if there is none."""
    for begin, end in sorted(lasts, reverse=True):
        record = record_head(log, begin)
        if record is not None and begin + int(record.store_size[0]) == end:
            return end
    return None


def _names(store: Store, bounds: QueueBounds, offset: int) -> bool:
    """Return whether an entry of a queue points to exactly this offset."""
    queue, first, last = (
        store.queue(bounds.topic, bounds.queue_id), bounds.min_offset, bounds.max_offset,
    )  # fmt: skip
    try:
        if last == first or queue.physical_offset(last - 1) < offset:
            return False
        slot = bisect_left(range(last), offset, first, key=queue.physical_offset)
        return queue.physical_offset(slot) == offset
    except (SegmentExpiredError, CorruptStoreError):
        return False  # the check of the queue reports it
