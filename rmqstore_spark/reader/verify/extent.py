"""Up to where a store's log is verified: what lies behind is a crash's leftover, or still to come.

A store that was closed has dispatched all its records, so its log ends at the first place behind
the newest record that a queue names where no whole record stands. Where a queue does name a record
at that very place, the log has lost it: that is damage, not the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.reader.logend import intact_end, record_head
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.search import first_true
from rmqstore_spark.reader.store import Store
from rmqstore_spark.reader.walk import Flaw, walk_log

__all__ = ["Extent", "find_extent"]


@dataclass(frozen=True)
class Extent:
    """Where the log ends, and why nothing counts from there on."""

    end: int
    cause: str


def find_extent(store: Store) -> Extent:
    """Find the end of a store's log."""
    log = store.log
    if log.dledger is not None:
        return Extent(log.file_end, "it is not known as committed")
    if store.is_being_written:
        return Extent(store.dispatched_end(), "it is not known as dispatched")
    end = _closed_end(store) if store.is_closed_cleanly else store.log_end()
    return Extent(end, _cause(store, end))


def _cause(store: Store, end: int) -> str:
    for item in walk_log(store.log, end, min(end + 1, store.log.file_end)):
        if isinstance(item, Flaw):
            return item.cause
    return "the log was cut before it"


def _closed_end(store: Store) -> int:
    lasts = _last_entries(store.queues())
    start = _known_end(store, lasts)
    if start is None:
        return intact_end(store.log, store.checkpoint)
    end = start
    for item in walk_log(store.log, start, store.log.file_end):
        if isinstance(item, Flaw):
            end = item.offset
            break
        end = item.end
    named = _named_at(store.queues(), end)
    return max([end, *(last for first, last in lasts if first >= end)]) if named else end


def _last_entries(queues: list[Queue]) -> list[tuple[int, int]]:
    """Where the record of each queue's last entry begins and ends in the log."""
    found = []
    for queue in queues:
        if queue.max_offset > queue.min_offset:
            entry = queue.entries(queue.max_offset - 1, queue.max_offset)[0]
            begin = int(entry["physicalOffset"])
            found.append((begin, begin + int(entry["size"])))
    return found


def _known_end(store: Store, lasts: list[tuple[int, int]]) -> int | None:
    """The end of the newest whole record that a queue names last; None where there is none."""
    for begin, end in sorted(lasts, reverse=True):
        record = record_head(store.log, begin)
        if record is not None and begin + int(record.store_size[0]) == end:
            return end
    return None


def _named_at(queues: list[Queue], offset: int) -> bool:
    """Whether an entry of a queue leads to just this place."""
    return any(_names(queue, offset) for queue in queues)


def _names(queue: Queue, offset: int) -> bool:
    first, last = queue.min_offset, queue.max_offset
    try:
        if last <= first or queue.physical_offset(last - 1) < offset:
            return False
        slot = first_true(first, last, lambda n: queue.physical_offset(n) >= offset)
        return queue.physical_offset(slot) == offset
    except (SegmentExpiredError, CorruptStoreError):
        return False  # the check of the queue says why
