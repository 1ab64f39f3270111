"""Looks up where many queues begin and end, with few requests.

A queue finds that out by bisection: some twenty small reads, one after the other (`Queue`). Where a
request takes long, the entries that these bisections may need next are read first, of all queues
together. Then each queue finds them read ahead, and looks up its offsets as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError, SegmentExpiredError
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.queue import BLOCK, Queue, ReadAhead, read_entry_bytes

_TOGETHER: Final = 100
"""Queues whose entries are in memory at one time."""
_STEPS: Final = 4
"""Steps of a bisection that are taken at once. They can read 15 entries, and do read 4 of them."""
_MOST_RECORD: Final = 64 << 10
"""Bytes of a record that is read ahead."""
_OF_A_QUEUE: Final = (SegmentExpiredError, CorruptStoreError, FileNotFoundError)
"""What is wrong with one queue does not concern the others."""
_NEAR: Final = 8 * BLOCK
"""Entries that are read at once when a bisection has come as close: 32 KB."""


def look_up_ends(log: CommitLog, queues: Sequence[Queue]) -> None:
    """Look up the offsets of queues that do not know them yet.

    What cannot be read is left to the queue, which reports the error when it is asked.

    Args:
        log: the log of their store.
        queues: the queues.
    """
    unknown = [queue for queue in queues if not queue.knows_ends and len(queue.segments)]
    with suppress(RmqStoreError):  # all others would wait as long for a store that does not answer
        for first in range(0, len(unknown), _TOGETHER):
            _look_up(log, unknown[first : first + _TOGETHER])


def _look_up(log: CommitLog, queues: Sequence[Queue]) -> None:
    for queue in queues:
        queue.ahead = ReadAhead()
    try:
        with suppress(*_OF_A_QUEUE):
            _read_ahead(log, queues)
        for queue in queues:
            with suppress(*_OF_A_QUEUE):
                queue.refresh()
    finally:
        for queue in queues:
            queue.ahead = None


def _read_ahead(log: CommitLog, queues: Sequence[Queue]) -> None:
    _read([(queue, queue.first_slot, queue.first_slot + 1) for queue in queues])
    blocks = [_empty_blocks(queue) for queue in queues]
    _bisect(blocks)
    _read([span for search in blocks for span in _around(search)])
    _read_last_records(log, queues)
    _bisect([
        _Bisection(queue, queue.max_offset - queue.first_slot, queue.first_slot, 1, queue.is_backed)
        for queue in queues
        if not queue.is_backed(queue.first_slot)
    ])  # fmt: skip


def _read(wanted: Sequence[tuple[Queue, int, int]]) -> None:
    """Read entries ahead: of each queue from one offset to another."""
    inside = []
    for queue, first, end in wanted:
        file_end = queue.format.slot(queue.segments.end_offset)
        inside.append((queue, max(first, queue.first_slot), min(end, file_end)))
    for (queue, first, end), data in zip(inside, read_entry_bytes(inside), strict=True):
        assert queue.ahead is not None  # noqa: S101  # `look_up_ends` set it
        size = queue.format.size
        for slot in range(first, end):
            at = (slot - first) * size
            queue.ahead.entries[slot] = data[at : at + size]


def _read_last_records(log: CommitLog, queues: Sequence[Queue]) -> None:
    """Read the record of each queue's last entry ahead, which tells whether the entry is stale."""
    ends = [(queue, queue.written_end()) for queue in queues]
    last = [(queue, *queue.stated_record(end - 1)) for queue, end in ends if end > queue.first_slot]
    offsets = np.array([offset for _, offset, _ in last], np.int64)
    sizes = np.array([size for _, _, size in last], np.int32)
    there = (sizes > 0) & (sizes <= _MOST_RECORD) & log.covers(offsets, sizes)
    wanted = [last[number] for number in np.flatnonzero(there).tolist()]
    found = log.read_all([(offset, size) for _, offset, size in wanted])
    for (queue, offset, _), data in zip(wanted, found, strict=True):
        assert queue.ahead is not None  # noqa: S101  # as above
        queue.ahead.records[offset] = data


class _Bisection:
    """A search for the first number of a range that is past something, as `bisect` does it.

    Args:
        queue: the queue whose entries tell it.
        end: the numbers go from 0 to `end`.
        base, step: number n is told by the entry `base + n * step`.
        is_past: whether the number that an entry tells about is past it; reads that entry.
    """

    def __init__(
        self, queue: Queue, end: int, base: int, step: int, is_past: Callable[[int], bool]
    ) -> None:
        self.queue = queue
        self.low, self.high = 0, end
        self._base = base
        self._step = step
        self._is_past = is_past

    def slot(self, number: int) -> int:
        """Return the entry that tells about a number."""
        return self._base + number * self._step

    @property
    def _is_near(self) -> bool:
        """Whether all that is left can be read at once."""
        return (self.high - self.low) * self._step <= _NEAR

    def next_spans(self) -> list[tuple[Queue, int, int]]:
        """Return the entries that the next steps can read."""
        if self._is_near:
            return [(self.queue, self.slot(self.low), self.slot(self.high))]
        slots = map(self.slot, _middles(self.low, self.high, _STEPS))
        return [(self.queue, slot, slot + 1) for slot in slots]

    def advance(self) -> None:
        """Take these steps."""
        left = self.high - self.low if self._is_near else _STEPS
        while left and self.low < self.high:
            left -= 1
            middle = (self.low + self.high) // 2
            if self._is_past(self.slot(middle)):
                self.high = middle
            else:
                self.low = middle + 1


def _middles(low: int, high: int, steps: int) -> Iterator[int]:
    if low < high and steps:
        middle = (low + high) // 2
        yield middle
        yield from _middles(low, middle, steps - 1)
        yield from _middles(middle + 1, high, steps - 1)


def _bisect(searches: Sequence[_Bisection]) -> None:
    """Do all searches together."""
    while left := [search for search in searches if search.low < search.high]:
        _read([span for search in left for span in search.next_spans()])
        for search in left:
            search.advance()


def _empty_blocks(queue: Queue) -> _Bisection:
    """Return the search for the first block of a queue's last file that is not written."""
    segment = queue.segments[len(queue.segments) - 1]
    first, end = queue.format.slot_from(segment.start), queue.format.slot(segment.end)
    return _Bisection(
        queue, -(-(end - first) // BLOCK), first, BLOCK, lambda slot: not queue.is_written(slot)
    )


def _around(search: _Bisection) -> Iterator[tuple[Queue, int, int]]:
    """Yield what a queue reads around the first block that is not written."""
    empty = search.low
    yield search.queue, search.slot(max(empty - 1, 0)), search.slot(empty + 1)
    for later in (empty + 1, empty + 8):
        yield search.queue, search.slot(later), search.slot(later) + 1
