"""The entries of many queues in the order of the log, a window of it at a time.

This is what makes one pass over the CommitLog give just the rows that the queues hold: not the log
is asked what it contains, but the queues are asked what of it is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import text_pool
from rmqstore_spark.reader.queue import Entries, Queue
from rmqstore_spark.reader.search import first_true
from rmqstore_spark.reader.selection import Selection, TagFilter
from rmqstore_spark.reader.splits import QueueRange

__all__ = ["merged"]

_FEWEST: Final = 64
_MOST: Final = 16_384
_BUFFERED: Final = 1 << 20  # entries that all cursors together hold
_NEVER: Final = 1 << 62


class _Cursor:
    """The entries of one range, in portions that grow as the queue proves busy."""

    def __init__(self, queue: Queue, start: int, end: int, most: int) -> None:
        self._queue = queue
        self._slot = start
        self._end = end
        self._most = most
        self._portion = _FEWEST
        self._entries: Entries = queue.entries(start, start)
        self._at = 0
        self._fill()

    @property
    def next_offset(self) -> int:
        """Physical offset of the next entry."""
        if self._at >= len(self._entries):
            return _NEVER
        return int(self._entries["physicalOffset"][self._at])

    def _fill(self) -> None:
        last = min(self._slot + self._portion, self._end)
        self._entries = self._queue.live_entries(self._slot, last)
        self._at = 0
        self._portion = min(2 * self._portion, self._most)

    def take(self, end: int) -> Iterator[tuple[int, Entries]]:
        """Entries that lie before a physical offset, with the slot of the first, in portions."""
        while self.next_offset < end:
            offsets = self._entries["physicalOffset"][self._at :].astype(np.int64)
            count = int(np.searchsorted(offsets, end))
            yield self._slot, self._entries[self._at : self._at + count]
            self._slot += count
            self._at += count
            if self._at == len(self._entries) and self._slot < self._end:
                self._fill()


def merged(
    queues: Sequence[Queue],
    ranges: Sequence[QueueRange],
    start: int,
    end: int,
    window: int,
    tags: TagFilter | None,
) -> Iterator[Selection]:
    """All entries of the ranges that lie in a stretch of the log.

    Args:
        queues: the queue of each range.
        ranges: what is wanted of them.
        start: first physical offset.
        end: one past the last.
        window: bytes of the log that one selection covers.
        tags: leaves out what cannot match.

    Yields:
        Selections, ascending; none is empty.
    """
    topics = text_pool([queue.topic for queue in queues])
    queue_ids = np.array([queue.queue_id for queue in queues], np.int32)
    most = min(_MOST, max(_FEWEST, _BUFFERED // max(1, len(queues))))
    cursors = [
        _Cursor(queue, _first_at(queue, wanted, start), wanted.end, most)
        for queue, wanted in zip(queues, ranges, strict=True)
    ]
    heads = np.array([cursor.next_offset for cursor in cursors], np.int64)
    while len(heads) and (at := int(heads.min())) < end:
        stop = min(at + window, end)
        parts = []
        for number in np.flatnonzero(heads < stop).tolist():
            for slot, entries in cursors[number].take(stop):
                slots = np.arange(slot, slot + len(entries))
                if tags is not None:
                    keep = tags.may_match(queues[number], entries)
                    entries, slots = entries[keep], slots[keep]
                parts.append((number, slots, entries))
            heads[number] = cursors[number].next_offset
        offsets = np.concatenate([e["physicalOffset"].astype(np.int64) for _, _, e in parts])
        order = np.argsort(offsets, kind="stable")
        if len(order):
            yield Selection(
                offsets[order],
                np.concatenate([e["size"].astype(np.int32) for _, _, e in parts])[order],
                np.concatenate([np.full(len(s), n, np.int32) for n, s, _ in parts])[order],
                np.concatenate([s for _, s, _ in parts])[order],
                topics,
                queue_ids,
            )


def _first_at(queue: Queue, wanted: QueueRange, start: int) -> int:
    """The first slot of a range whose entry lies at or past a physical offset."""
    if wanted.count == 0 or queue.physical_offset(wanted.start) >= start:
        return wanted.start
    return first_true(wanted.start, wanted.end, lambda slot: queue.physical_offset(slot) >= start)
