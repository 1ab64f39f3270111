"""Looks up where many queues begin and end, with few requests.

A queue finds that out by bisection: some twenty small reads, one after the other (`Queue`). Where a
request takes long, the entries that these bisections may need next are read first, of all queues
together. Then each queue finds them read ahead, and looks up its offsets as always.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.queues.format import Entries, QueueFormat
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.queue import BLOCK, Queue, ReadAhead, read_entry_bytes

_TOGETHER: Final = 256
"""Queues whose entries are in memory at one time. So many of their reads fit into one request."""
_STEPS: Final = 4
"""Steps of a bisection that are taken at once. They can read 15 entries, and do read 4 of them."""
_MOST_RECORD: Final = 64 << 10
"""Bytes of a record that is read ahead."""
_OF_A_QUEUE: Final = (SegmentExpiredError, CorruptStoreError, FileNotFoundError)
"""What is wrong with one queue does not concern the others."""
_NEAR: Final = 8 * BLOCK
"""Entries that are read at once when a bisection has come as close: 32 KB."""
_SHORT: Final = 1
"""Blocks of a short queue."""


def look_up_ends(log: CommitLog, queues: Sequence[Queue]) -> None:
    """Look up the offsets of queues that do not know them yet.

    What cannot be read is left to the queue, which reports the error when it is asked.

    Args:
        log: the log of their store.
        queues: the queues.
    """
    unknown = [queue for queue in queues if not queue.knows_ends and len(queue.segments)]
    with suppress(RmqStoreError):  # all others would wait as long for a store that does not answer
        for some in _parts(unknown):
            with _ahead(some):
                _look_up(log, some)


def refresh_queues(
    directory: StoreDirectory, log: CommitLog, queues: Sequence[Queue], *, relist: bool = False
) -> list[bool]:
    """Look for new and expired entries of queues, as `Queue.refresh` does of one.

    Args:
        directory: the directory of their store.
        log: its log.
        queues: the queues.
        relist: list their folders again. Where one request lists them all, the caller has done it:
            that is the directory's last `refresh`.

    Returns:
        Whether the offsets changed, of each queue.

    Raises:
        SegmentExpiredError, CorruptStoreError, RmqStoreError: as `Queue.refresh`.
    """
    if not directory.files.reads_together:
        return [queue.refresh(relist=relist) for queue in queues]
    before = [queue.known_ends for queue in queues]
    listings = directory.topology.listings if relist else {}
    for some in _parts(queues):
        with _ahead(some):
            with suppress(*_OF_A_QUEUE):
                _read([span for queue in some for span in _known_ends(queue)])
            for queue in some:
                queue.doubt(relist=relist, listing=listings.get((queue.topic, queue.queue_id)))
            _look_up(log, [queue for queue in some if not queue.knows_ends and queue.segments])
    return [
        ends != (queue.min_offset, queue.max_offset)
        for ends, queue in zip(before, queues, strict=True)
    ]


def last_entries(queue_format: QueueFormat, queues: Sequence[Queue]) -> Entries:
    """Read the last entry of each of some queues that are not empty, with few requests.

    Raises:
        SegmentExpiredError, CorruptStoreError: as `Queue.entries`.
    """
    wanted = [(queue, queue.max_offset - 1, queue.max_offset) for queue in queues]
    return queue_format.decode(b"".join(read_entry_bytes(wanted)))


def _parts(queues: Sequence[Queue]) -> Iterator[Sequence[Queue]]:
    """Yield the queues, so many at a time as are looked up together."""
    for first in range(0, len(queues), _TOGETHER):
        yield queues[first : first + _TOGETHER]


@contextmanager
def _ahead(queues: Sequence[Queue]) -> Iterator[None]:
    """Let queues find what is read ahead, in the context."""
    for queue in queues:
        queue.ahead = ReadAhead(queue.format.size)
    try:
        yield
    finally:
        for queue in queues:
            queue.ahead = None


def _look_up(log: CommitLog, queues: Sequence[Queue]) -> None:
    with suppress(*_OF_A_QUEUE):
        _read_ahead(log, queues)
    for queue in queues:
        with suppress(*_OF_A_QUEUE):
            queue.refresh()


def _known_ends(queue: Queue) -> Iterator[tuple[Queue, int, int]]:
    """Yield the entries that show whether the known offsets of a queue still hold."""
    first, end = queue.known_ends
    if end is not None:
        yield queue, end - 1, end + 1
    if first is not None:
        yield queue, first, first + 1


def _read_ahead(log: CommitLog, queues: Sequence[Queue]) -> None:
    blocks = [_empty_blocks(queue) for queue in queues]
    _read([span for search in blocks for span in _of_short(search)])
    for search in blocks:
        search.advance()
    long = [search for search in blocks if search.high > _SHORT]
    _bisect(long)
    _read([span for search in long for span in _around(search, search.low)])
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
    for (queue, first, _), data in zip(inside, read_entry_bytes(inside), strict=True):
        assert queue.ahead is not None  # noqa: S101  # of `_ahead`
        if data:
            queue.ahead.add(first, data)


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

    def next_spans(self) -> list[tuple[Queue, int, int]]:
        """Return the entries that the next steps can read: all, if these are close together."""
        if self._step == 1 and self.high - self.low <= _NEAR:
            return [(self.queue, self.slot(self.low), self.slot(self.high))]
        slots = map(self.slot, _middles(self.low, self.high, _STEPS))
        return [(self.queue, slot, slot + 1) for slot in slots]

    def down_spans(self) -> list[tuple[Queue, int, int]]:
        """Return the entries of all steps, if what is searched for is at the very beginning."""
        ends = itertools.takewhile(bool, map(self.high.__rshift__, itertools.count(1)))
        return [(self.queue, self.slot(n), self.slot(n) + 1) for n in ends]

    def advance(self) -> bool:
        """Take the steps whose entries have been read ahead; return whether there was one."""
        assert self.queue.ahead is not None  # noqa: S101  # of `_ahead`
        moved = False
        while self.low < self.high:
            middle = (self.low + self.high) // 2
            slot = self.slot(middle)
            if not self.queue.ahead.entries(slot, slot + 1):
                break
            moved = True
            if self._is_past(slot):
                self.high = middle
            else:
                self.low = middle + 1
        return moved


def _middles(low: int, high: int, steps: int) -> Iterator[int]:
    if low < high and steps:
        middle = (low + high) // 2
        yield middle
        yield from _middles(low, middle, steps - 1)
        yield from _middles(middle + 1, high, steps - 1)


def _bisect(searches: Sequence[_Bisection]) -> None:
    """Do all searches together."""
    left = [search for search in searches if search.low < search.high]
    while left:
        _read([span for search in left for span in search.next_spans()])
        left = [search for search in left if search.advance() and search.low < search.high]


def _empty_blocks(queue: Queue) -> _Bisection:
    """Return the search for the first block of a queue's last file that is not written."""
    segment = queue.segments[len(queue.segments) - 1]
    first, end = queue.format.slot_from(segment.start), queue.format.slot(segment.end)
    return _Bisection(
        queue, -(-(end - first) // BLOCK), first, BLOCK, lambda slot: not queue.is_written(slot)
    )


def _around(search: _Bisection, empty: int) -> Iterator[tuple[Queue, int, int]]:
    """Yield what a queue reads around the first block that is not written."""
    yield search.queue, search.slot(max(empty - 1, 0)), search.slot(empty + 1)
    for later in (empty + 1, empty + 8):
        yield search.queue, search.slot(later), search.slot(later) + 1


def _of_short(search: _Bisection) -> Iterator[tuple[Queue, int, int]]:
    """Yield all that a queue reads if its last file has no more than a block of entries.

    Of many queues, most are short: one request will do for all of them. Others come closer to where
    they end.
    """
    queue = search.queue
    if search.slot(0) != queue.first_slot:
        yield queue, queue.first_slot, queue.first_slot + 1
    yield from _around(search, _SHORT)
    yield from search.down_spans()
