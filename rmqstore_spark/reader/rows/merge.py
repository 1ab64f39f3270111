"""Merges the entries of many queues in the order of the log, a window of the log at a time.

So one pass over the CommitLog returns exactly the rows that the queues hold: the entries decide
which records are read, not the records themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.consumequeue import EntryColumns, split_entries
from rmqstore_spark.layout.spans import I8, text_pool
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.rows.selection import Selection, TagFilter, unexpired, usable_entries
from rmqstore_spark.reader.rows.splits import LogSplit, QueueRange

__all__ = ["merged"]

_FEWEST: Final = 64
_MOST: Final = 16_384
_SHORT: Final = 1024  # reading this many entries costs no more than a few steps of a search
_AT_ONCE: Final = 1 << 19  # entries that are merged without cursors
_BUFFERED: Final = 1 << 20  # entries that all cursors together hold
_ENOUGH: Final = 1 << 18  # entries in a window: enough to make the cost per queue small
_NEVER: Final = 1 << 62


class _Cursor:
    """Reads the entries of some slots of a queue, in batches.

    The physical offsets of a queue's entries ascend. An entry that breaks this order is damaged. It
    is sorted as if it had the offset of the next entry, so that it does not hold up the others. The
    check of its record then fails.
    """

    def __init__(self, queue: Queue, slots: range, most: int, options: ReadOptions) -> None:
        self._queue = queue
        self._left = slots
        self._most = most
        self._options = options
        self._entries, self._slots = usable_entries(queue, slots.start, slots.start, options)
        self._places = np.empty(0, np.int64)
        self._at = 0

    def next_place(self) -> int:
        """Return the physical offset of the next entry."""
        while self._at == len(self._entries) and self._left:
            now, self._left = self._left[: self._most], self._left[self._most :]
            self._entries, self._slots = usable_entries(
                self._queue, now.start, now.stop, self._options
            )
            self._places = self._entries.offsets
            if (self._places[1:] < self._places[:-1]).any():
                self._places = np.minimum.accumulate(self._places[::-1])[::-1]
            self._at = 0
        return int(self._places[self._at]) if self._at < len(self._entries) else _NEVER

    def take(self, end: int) -> Iterator[tuple[EntryColumns, I8]]:
        """Yield the entries before a physical offset, and their slots, in batches."""
        while self.next_place() < end:
            upto = int(np.searchsorted(self._places, end))
            yield self._entries[self._at : upto], self._slots[self._at : upto]
            self._at = upto


def merged(queues: Sequence[Queue], split: LogSplit, options: ReadOptions) -> Iterator[Selection]:
    """Merge all entries of a split in the order of the log.

    Args:
        queues: the queue of each range of the split.
        split: the split.
        options: the options of the read, which decide what is left out; see `usable_entries`.

    Yields:
        Selections. None of them is empty.

    Raises:
        CorruptStoreError: an entry is damaged, and the mode is FAILFAST.
        SegmentExpiredError: a queue's file has expired, and `fail_on_data_loss` is set.
    """
    short = _merged_at_once(queues, split, options)
    if short is not None:
        if len(short):
            yield short
        return
    topics = text_pool([queue.topic for queue in queues])
    queue_ids = np.array([queue.queue_id for queue in queues], np.int32)
    most = min(_MOST, max(_FEWEST, _BUFFERED // max(1, len(queues))))
    tags = TagFilter(options.tags) if options.tags is not None else None
    cursors = [
        _Cursor(queue, _slots_of(queue, split, number, options), most, options)
        for number, queue in enumerate(queues)
    ]
    heads = np.array([cursor.next_place() for cursor in cursors], np.int64)
    window = options.batch_bytes
    while len(heads) and (at := int(heads.min())) != _NEVER:
        found: list[tuple[int, EntryColumns, I8]] = []
        looked_at = 0
        for number in np.flatnonzero(heads < at + window).tolist():
            for entries, slots in cursors[number].take(at + window):
                looked_at += len(entries)
                if tags is not None:
                    keep = tags.may_match(queues[number], entries)
                    entries, slots = entries[keep], slots[keep]
                found.append((number, entries, slots))
            heads[number] = cursors[number].next_place()
        if looked_at < _ENOUGH:
            window *= 2
        offsets = np.concatenate([e.offsets for _, e, _ in found])
        numbers = np.array([number for number, _, _ in found], np.int32)
        order = np.argsort(offsets, kind="stable")
        if len(order):
            yield Selection(
                offsets[order],
                np.concatenate([e.sizes for _, e, _ in found])[order],
                np.repeat(numbers, [len(slots) for _, _, slots in found])[order],
                np.concatenate([s for _, _, s in found])[order],
                topics,
                queue_ids,
            )


def _merged_at_once(
    queues: Sequence[Queue], split: LogSplit, options: ReadOptions
) -> Selection | None:
    """Merge a split of short ranges with one read for each queue, as in a stream's micro-batches.

    Returns:
        All entries of the split. None if the ranges are long, so that reading each of them whole
        would be a waste, or if entries are missing or damaged, or have to be filtered.
    """
    counts = np.array([wanted.count for wanted in split.ranges], np.int64)
    if (
        counts.sum() > min(_AT_ONCE, _SHORT * len(queues))
        or options.tags is not None
        or not options.fail_on_data_loss
    ):
        return None
    try:
        data = b"".join(
            queue.entry_bytes(wanted.start, wanted.end)
            for queue, wanted in zip(queues, split.ranges, strict=True)
        )
    except (SegmentExpiredError, CorruptStoreError):
        return None
    entries, live = split_entries(data)
    numbers = np.repeat(np.arange(len(queues), dtype=np.int32), counts)
    is_next = numbers[1:] == numbers[:-1]
    if not live or (is_next & (entries.offsets[1:] < entries.offsets[:-1])).any():
        return None
    # Each range is cut as `_slots_of` cuts it.
    is_continued, is_unfinished = (
        np.isin(np.arange(len(queues)), some) for some in (split.continued, split.unfinished)
    )
    inside = (entries.offsets >= split.start) | ~is_continued[numbers]
    inside &= (entries.offsets < split.end) | ~is_unfinished[numbers]
    starts = np.array([wanted.start for wanted in split.ranges], np.int64)
    slots = np.arange(len(numbers)) + np.repeat(starts + counts - np.cumsum(counts), counts)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(entries.offsets[rows], kind="stable")]
    return Selection(
        entries.offsets[rows],
        entries.sizes[rows],
        numbers[rows],
        slots[rows],
        text_pool([queue.topic for queue in queues]),
        np.array([queue.queue_id for queue in queues], np.int32),
    )


def _slots_of(queue: Queue, split: LogSplit, number: int, options: ReadOptions) -> range:
    """Return the slots of one of a split's ranges that belong to the split.

    The splits on both sides of an edge find the same slot there with the same search. So no entry
    is left out or read twice, even if a damaged entry misleads the search.
    """
    is_continued = number in split.continued
    wanted = unexpired(queue, split.ranges[number], options, tell=not is_continued)
    start = _first_at(queue, wanted, split.start) if is_continued else wanted.start
    end = _first_at(queue, wanted, split.end) if number in split.unfinished else wanted.end
    return range(start, end)


def _first_at(queue: Queue, wanted: QueueRange, place: int) -> int:
    """Search a range for the first entry that states a physical offset or a greater one."""
    first, end = wanted.start, wanted.end
    while end - first > _SHORT:
        middle = (first + end) // 2
        if queue.stated_offset(middle) < place:
            first = middle + 1
        else:
            end = middle
    try:
        stated = queue.entries(first, end)["physicalOffset"].tolist()
    except (SegmentExpiredError, CorruptStoreError):
        # A file is missing or was cut short. The search may not need it.
        return bisect_left(range(end), place, first, key=queue.stated_offset)
    return first + bisect_left(stated, place)
