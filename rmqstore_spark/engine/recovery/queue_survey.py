"""Surveys the queues of a store that is opened, with a few system calls for each.

A store can have many thousands of queues, most of them idle, and opening it waits for a look at
each. A queue is plain if its files are as a writer leaves them: contiguous, of one size, with
entries up to some slot and only a hole after it. Its last page then shows all that is needed. Other
queues are not in the survey, and need a thorough check (`reader.queue`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, OptionError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import solid_end
from rmqstore_spark.files.log_files import MAX_OFFSET, segment_start
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries, Entry, QueueFormat
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.dispatches import belongs_to
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog

_TAIL: Final = 205  # entries: a page of them
_READ_AT_ONCE: Final = 8 << 20  # bytes of the log
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_NO_ENTRY: Final = Entry(-1, 0, is_filler=False)


class PlainQueue(NamedTuple):
    """A queue whose files are as a writer leaves them.

    Attributes:
        topic, queue_id: the queue.
        folder: the folder of its files.
        file_size: bytes of each file.
        first_slot: the first slot that a file has room for.
        last_file: the byte of the queue at which its last file starts.
        least: the first slot whose record is still in the log.
        end: one past the last entry; nothing is written after it.
        physical_offset, size: what the last entry states of its record; -1 and 0 for none.
    """

    topic: str
    queue_id: int
    folder: str
    file_size: int
    first_slot: int
    last_file: int
    least: int
    end: int
    physical_offset: int
    size: int

    @property
    def record_end(self) -> int:
        """The physical offset one past the last entry's record; -1 without entries."""
        return self.physical_offset + self.size


class _Last(NamedTuple):
    """The last valid entry of a queue, to be compared with the log."""

    route: tuple[str, int]
    slot: int
    physical_offset: int
    size: int


class QueueSurvey:
    """All plain queues of a store. Queues that it does not list may be in any state.

    Args:
        directory: the store.
        log: its log.
    """

    def __init__(self, directory: StoreDirectory, log: CommitLog) -> None:
        self._log = log
        self._format = directory.queue_format
        found = []
        for topic, numbers in directory.topology.queues.items():
            for queue_id in numbers:
                folder = os.path.join(directory.path, "consumequeue", topic, str(queue_id))
                queue = _look(self._format, folder, topic, queue_id, log.min_offset)
                if queue is not None:
                    found.append(queue)
        sizes = Counter(queue.file_size for queue in found).most_common(1)
        usual = sizes[0][0] if sizes else 0
        stale = self._stale(
            _Last((q.topic, q.queue_id), q.end - 1, q.physical_offset, q.size)
            for q in found
            if q.size
        )
        self.queues = {
            (queue.topic, queue.queue_id): queue
            for queue in found
            if queue.file_size == usual and (queue.topic, queue.queue_id) not in stale
        }

    def bounds_before(self, start: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return least slot and end of each queue for the part of the log before an offset.

        Queues that need more than a look are left out.

        Args:
            start: physical offset of a record.
        """
        found: dict[tuple[str, int], tuple[int, int]] = {}
        lasts = []
        for route, queue in self.queues.items():
            if queue.record_end <= start:
                found[route] = queue.least, queue.end
            elif start <= self._log.min_offset:
                found[route] = queue.least, queue.least
            else:
                cut = _cut(self._format, queue, start)
                if cut is not None:
                    end, last = cut
                    found[route] = min(queue.least, end), end
                    lasts += [_Last(route, end - 1, *last)] if last else []
        for route in self._stale(lasts):
            del found[route]
        return found

    def _stale(self, lasts: Iterable[_Last]) -> set[tuple[str, int]]:
        """Return queues whose last entry may be left over from before a recovery (`reader.queue`).

        The entry leads to another message, or its record cannot be read.
        """
        stale: set[tuple[str, int]] = set()
        for part in _portions(sorted(lasts, key=lambda last: last.physical_offset)):
            offsets = np.array([last.physical_offset for last in part], np.int64)
            sizes = np.array([last.size for last in part], np.int32)
            there = np.flatnonzero(self._log.covers(offsets, sizes))
            part = [part[row] for row in there.tolist()]
            sizes = np.minimum(sizes[there], MAX_RECORD_SIZE).astype(np.int32)
            identity = Identity.each(
                text_pool([last.route[0] for last in part]),
                np.array([last.route[1] for last in part], np.int32),
                np.array([last.slot for last in part], np.int64),
            )
            try:
                buffer, positions = self._log.read_entries(offsets[there], sizes, None)
            except (SegmentExpiredError, CorruptStoreError):
                stale.update(last.route for last in part)
                continue
            same = belongs_to(decode_records(buffer, positions, sizes), identity)
            stale.update(part[row].route for row in np.flatnonzero(~same).tolist())
        return stale


def _look(
    of: QueueFormat, folder: str, topic: str, queue_id: int, log_begin: int
) -> PlainQueue | None:
    """Survey a queue; return None if its files are not plain."""
    try:
        files = _files(folder)
        if not files:
            return None
        begin, size = files[0]
        if size % of.size or begin % size:
            return None
        if files != [(begin + number * size, size) for number in range(len(files))]:
            return None
        last_file = files[-1][0]
        tail = _tail(of, folder, last_file, size)
        if tail is None:
            return None
        at, entries = tail
        first = of.slot(begin)
        if not len(entries):
            if last_file > begin:
                return None
            return PlainQueue(topic, queue_id, folder, size, first, last_file, first, first, -1, 0)
        last = of.entry(entries[-1:].tobytes())
        if last.size > MAX_RECORD_SIZE:  # no message: finding the end takes more than a look
            return None
        end = at + len(entries)
        least: int | None = first
        if at > first or not _is_backed(of.entry(entries[:1].tobytes()), log_begin):
            least = _least(of, folder, begin, size, end, log_begin)
    except OSError:
        return None
    if least is None:
        return None
    return PlainQueue(
        topic, queue_id, folder, size, first, last_file, least, end, last.physical_offset, last.size
    )


def _files(folder: str) -> list[tuple[int, int]]:
    """Return start and size of each file of a queue; nothing if other files are among them."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            start = segment_start(entry.name)
            if entry.is_symlink():
                raise OptionError(
                    f"{entry.path} is a link to {os.readlink(entry.path)}. Put the file itself in "
                    "its place."
                )
            if start is not None and entry.is_dir():
                raise OptionError(
                    f"{entry.path} is a folder with the name of a queue's file. Move it out of "
                    f"{folder}."
                )
            if start is None or not entry.is_file():
                return []
            size = entry.stat().st_size
            if not 0 < size <= MAX_OFFSET - start:
                return []
            found.append((start, size))
    found.sort()
    return found


def _tail(of: QueueFormat, folder: str, start: int, size: int) -> tuple[int, Entries] | None:
    """Return the last entries of a file, and the slot of the first of them.

    Return None if the file has holes before its end, unwritten entries among those that were read,
    or too many zeros at its end.
    """
    descriptor = os.open(f"{folder}/{start:020}", _FLAGS)
    try:
        end = solid_end(descriptor, size)
        if end is None:
            return None
        end = min(of.slot_from(end) * of.size, size)
        begin = max(0, end - _TAIL * of.size)
        data = os.pread(descriptor, end - begin, begin)
        if len(data) < end - begin or not _is_written_up_to(of, descriptor, begin):
            return None
    finally:
        os.close(descriptor)
    entries = of.decode(data)[: of.slot_from(len(data.rstrip(b"\0")))]
    if (begin and not len(entries)) or not of.is_written(entries).all():
        return None
    return of.slot(start + begin), entries


def _is_written_up_to(of: QueueFormat, descriptor: int, end: int) -> bool:
    """Return whether a file is written up to a byte, as far as a few probes show."""

    def is_empty(part: int) -> bool:
        return not _entry(of, descriptor, part * step).is_written

    step = _TAIL * of.size
    parts = -(-end // step)
    return bisect_left(range(parts), True, key=is_empty) == parts


def _least(
    of: QueueFormat, folder: str, begin: int, size: int, end: int, log_begin: int
) -> int | None:
    """Return the first slot whose record is still in the log.

    Return None if that slot is not in the first file, or the file is damaged.
    """
    first, last = of.slot(begin), of.slot(begin + size)
    descriptor = os.open(f"{folder}/{begin:020}", _FLAGS)
    try:

        def entry(slot: int) -> Entry:
            return _entry(of, descriptor, slot * of.size - begin)

        if not entry(first).is_written:
            return None
        if _is_backed(entry(first), log_begin):
            return first
        stop = min(last, end)
        found = bisect_left(
            range(stop), True, first, key=lambda slot: _is_backed(entry(slot), log_begin)
        )
        if found < stop and not entry(found).is_written:
            return None
    finally:
        os.close(descriptor)
    return found if found < last or end <= last else None


def _entry(of: QueueFormat, descriptor: int, at: int) -> Entry:
    data = os.pread(descriptor, of.size, at)
    return of.entry(data) if len(data) == of.size else _NO_ENTRY


def _is_backed(entry: Entry, log_begin: int) -> bool:
    """Return whether a written entry is a message that has not expired from the log."""
    return not entry.is_filler and entry.physical_offset >= log_begin


def _cut(
    of: QueueFormat, queue: PlainQueue, start: int
) -> tuple[int, tuple[int, int] | None] | None:
    """Return a queue's end without records past an offset, and what its last entry states.

    Return None if that end is not among the last entries.
    """
    try:
        tail = _tail(of, queue.folder, queue.last_file, queue.file_size)
    except OSError:
        return None
    if tail is None or not len(tail[1]):
        return None
    at, entries = tail
    ends = entries["physicalOffset"].astype(np.int64) + entries["size"]
    past = (ends > start) & ~of.is_filler(entries)
    count = int(np.argmax(past))
    if not past[count:].all() or (count == 0 and at > queue.first_slot):
        return None
    if count == 0:
        return at, None
    last = of.entry(entries[count - 1 : count].tobytes())
    return at + count, (None if last.is_filler else (last.physical_offset, last.size))


def _portions(lasts: list[_Last]) -> Iterator[list[_Last]]:
    """Split entries into parts whose records together are not too long."""
    part: list[_Last] = []
    size = 0
    for last in lasts:
        part.append(last)
        size += min(last.size, MAX_RECORD_SIZE)
        if size >= _READ_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
