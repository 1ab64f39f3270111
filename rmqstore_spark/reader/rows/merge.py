"""Merges the entries of many queues in the order of the log, a window of the log at a time.

So one pass over the CommitLog returns exactly the rows that the queues hold: the entries decide
which records are read, not the records themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.queues.format import EntryColumns
from rmqstore_spark.layout.spans import I8, text_pool
from rmqstore_spark.reader.options import LogSplit, ReadOptions
from rmqstore_spark.reader.queue import Queue, read_entry_bytes, stated_offsets
from rmqstore_spark.reader.rows.selection import Selection, TagFilter, unexpired, usable_entries

_FEWEST: Final = 64
_MOST: Final = 16_384
_AT_ONCE: Final = 1 << 19  # entries that are merged without cursors
_SEARCHED: Final = 1 << 20  # entries that are searched at once
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
    whole = [range(wanted.start, wanted.end) for wanted in split.ranges]
    is_short = sum(map(len, whole)) <= min(
        _AT_ONCE, len(queues) * (_block(queues[0]) if queues else 0)
    )
    slots = whole if is_short else _slots(queues, split, options)
    together = _merged_at_once(queues, split, slots, options)
    if together is not None:
        if len(together):
            yield together
        return
    if is_short:
        slots = _slots(queues, split, options)
    topics = text_pool([queue.topic for queue in queues])
    queue_ids = np.array([queue.queue_id for queue in queues], np.int32)
    most = min(_MOST, max(_FEWEST, _BUFFERED // max(1, len(queues))))
    tags = TagFilter(options.tags) if options.tags is not None else None
    cursors = [
        _Cursor(queue, there, most, options) for queue, there in zip(queues, slots, strict=True)
    ]
    heads = np.array([cursor.next_place() for cursor in cursors], np.int64)
    window = options.batch_bytes
    while len(heads) and (at := int(heads.min())) != _NEVER:
        found: list[tuple[int, EntryColumns, I8]] = []
        looked_at = 0
        for number in np.flatnonzero(heads < at + window).tolist():
            for entries, own in cursors[number].take(at + window):
                looked_at += len(entries)
                if tags is not None:
                    keep = tags.may_match(queues[number], entries)
                    entries, own = entries[keep], own[keep]
                found.append((number, entries, own))
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
                np.repeat(numbers, [len(own) for _, _, own in found])[order],
                np.concatenate([s for _, _, s in found])[order],
                topics,
                queue_ids,
            )


def _merged_at_once(
    queues: Sequence[Queue], split: LogSplit, slots: Sequence[range], options: ReadOptions
) -> Selection | None:
    """Merge the entries of some slots of each queue, which are read together.

    Returns:
        Those entries that belong to the split. None if they are many, missing or damaged, or have
        to be filtered.
    """
    counts = np.array([len(there) for there in slots], np.int64)
    if not queues or counts.sum() > _AT_ONCE:
        return None
    if options.tags is not None or not options.fail_on_data_loss:
        return None
    try:
        data = b"".join(
            read_entry_bytes([(q, s.start, s.stop) for q, s in zip(queues, slots, strict=True)])
        )
    except (SegmentExpiredError, CorruptStoreError):
        return None
    entries, live = queues[0].format.split(data)  # those of a store have one format
    numbers = np.repeat(np.arange(len(queues), dtype=np.int32), counts)
    is_next = numbers[1:] == numbers[:-1]
    if not live or (is_next & (entries.offsets[1:] < entries.offsets[:-1])).any():
        return None
    # Each range is cut as `_slots` cuts it.
    is_continued, is_unfinished = (
        np.isin(np.arange(len(queues)), some) for some in (split.continued, split.unfinished)
    )
    inside = (entries.offsets >= split.start) | ~is_continued[numbers]
    inside &= (entries.offsets < split.end) | ~is_unfinished[numbers]
    starts = np.array([there.start for there in slots], np.int64)
    own = np.arange(len(numbers)) + np.repeat(starts + counts - np.cumsum(counts), counts)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(entries.offsets[rows], kind="stable")]
    return Selection(
        entries.offsets[rows],
        entries.sizes[rows],
        numbers[rows],
        own[rows],
        text_pool([queue.topic for queue in queues]),
        np.array([queue.queue_id for queue in queues], np.int32),
    )


def _slots(queues: Sequence[Queue], split: LogSplit, options: ReadOptions) -> list[range]:
    """Return the slots of each of a split's ranges that belong to the split.

    The splits on both sides of an edge find the same slot there with the same search. So no entry
    is left out or read twice, even if a damaged entry misleads the search.
    """
    edges = []
    for number, (queue, given) in enumerate(zip(queues, split.ranges, strict=True)):
        is_continued = number in split.continued
        wanted = unexpired(queue, given, options, tell=not is_continued)
        first = _Edge(queue, split.start, wanted.start, wanted.end)
        last = _Edge(queue, split.end, wanted.start, wanted.end)
        edges.append(
            (
                first if is_continued else first.found(wanted.start),
                last if number in split.unfinished else last.found(wanted.end),
            )
        )
    _search([edge for pair in edges for edge in pair])
    return [range(first.first, last.first) for first, last in edges]


@dataclass
class _Edge:
    """A search of a queue for the first entry that states a physical offset or a greater one.

    Attributes:
        queue: the queue.
        place: the physical offset.
        first, end: the entry is one of these slots, or `end`. They are equal when it is found.
    """

    queue: Queue
    place: int
    first: int
    end: int

    def found(self, slot: int) -> _Edge:
        """End the search at a slot."""
        self.first = self.end = slot
        return self


def _search(edges: Sequence[_Edge]) -> None:
    """Take all searches to their ends, each step of all of them with one read."""
    left = [edge for edge in edges if edge.first < edge.end]
    block = _block(left[0].queue) if left else 0
    wide = left
    while wide := [edge for edge in wide if edge.end - edge.first > block]:
        middles = [(edge.first + edge.end) // 2 for edge in wide]
        stated = stated_offsets(list(zip((edge.queue for edge in wide), middles, strict=True)))
        for edge, middle, offset in zip(wide, middles, stated, strict=True):
            if offset < edge.place:
                edge.first = middle + 1
            else:
                edge.end = middle
    at_once = max(1, _SEARCHED // max(1, block))
    for first in range(0, len(left), at_once):
        _end_all(left[first : first + at_once])


def _end_all(edges: Sequence[_Edge]) -> None:
    """End searches in the entries that are left of them, which are read together."""
    try:
        data = read_entry_bytes([(edge.queue, edge.first, edge.end) for edge in edges])
    except (SegmentExpiredError, CorruptStoreError):
        # A file is missing or was cut short. Only some of the searches may need it.
        for edge in edges:
            _end_alone(edge)
        return
    for edge, entries in zip(edges, data, strict=True):
        _end_in(edge, entries)


def _end_alone(edge: _Edge) -> None:
    try:
        _end_in(edge, edge.queue.entry_bytes(edge.first, edge.end))
    except (SegmentExpiredError, CorruptStoreError):
        slots, stated = range(edge.end), edge.queue.stated_offset
        edge.found(bisect_left(slots, edge.place, edge.first, key=stated))


def _end_in(edge: _Edge, entries: bytes) -> None:
    stated = edge.queue.format.decode(entries)["physicalOffset"]
    edge.found(edge.first + bisect_left(stated, edge.place))


def _block(queue: Queue) -> int:
    """Return how many entries take hardly longer to read than one entry."""
    return queue.format.slot(queue.segments.block)
