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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, starmap
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, OptionError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import solid_end
from rmqstore_spark.files.log_files import MAX_OFFSET, segment_start
from rmqstore_spark.files.systems.spans import slices_of_size
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries, Entry, Mask, QueueFormat
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.dispatches import belongs_to
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import I8, text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog

_TAIL: Final = 205  # entries: a page of them
_READ_AT_ONCE: Final = 8 << 20  # bytes of the log
_AT_ONCE: Final = 500  # queues whose last pages are in memory at one time
_FIRST, _LAST, _LEAST, _END, _OFFSET, _SIZE = range(6)  # the columns of `PlainQueue`
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_NO_ENTRY: Final = Entry(-1, 0, is_filler=False)


class PlainQueue(NamedTuple):
    """A queue whose files are as a writer leaves them.

    Attributes:
        first_slot: the first slot that a file has room for.
        last_file: the byte of the queue at which its last file starts.
        least: the first slot whose record is still in the log.
        end: one past the last entry; nothing is written after it.
        physical_offset, size: what the last entry states of its record; -1 and 0 for none.
    """

    first_slot: int
    last_file: int
    least: int
    end: int
    physical_offset: int
    size: int


class QueueSurvey:
    """All plain queues of a store. Queues that it does not list may be in any state.

    There is no object for a queue, but a row in each of some arrays.

    Args:
        directory: the store.
        log: its log.

    Attributes:
        file_size: bytes of each file of them all; 0 without any.
    """

    def __init__(self, directory: StoreDirectory, log: CommitLog) -> None:
        self._log = log
        self._format = directory.queue_format
        self._folder = os.path.join(directory.path, "consumequeue")
        found = _Found([], [], [])
        routes = ((t, n) for t, ids in directory.topology.queues.items() for n in ids)
        while part := list(islice(routes, _AT_ONCE)):
            _look(self._format, self._folder, part, log.min_offset, found)
        usual = Counter(found.file_sizes).most_common(1)
        self.file_size = usual[0][0] if usual else 0
        table = np.array(found.plain, np.int64).reshape(-1, len(PlainQueue._fields))
        good = np.array(found.file_sizes, np.int64) == self.file_size
        rows = np.flatnonzero(table[:, _SIZE] > 0)
        good[
            rows[self._stale(found.routes, rows, table[rows, _END] - 1, *table[rows, _OFFSET:].T)]
        ] = 0
        kept = np.flatnonzero(good)
        self._table = table[kept]
        self._routes = [found.routes[row] for row in kept.tolist()]
        self._rows = {route: row for row, route in enumerate(self._routes)}

    def queue(self, topic: str, queue_id: int) -> PlainQueue | None:
        """Return a plain queue; None for others."""
        row = self._rows.get((topic, queue_id))
        return None if row is None else PlainQueue(*self._table[row].tolist())

    def queues(self) -> Iterator[tuple[tuple[str, int], PlainQueue]]:
        """Yield all plain queues, each after its topic and queueId."""
        return zip(self._routes, starmap(PlainQueue, self._table.tolist()), strict=True)

    def bounds_before(self, start: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return least slot and end of each queue for the part of the log before an offset.

        Queues that need more than a look are left out.

        Args:
            start: physical offset of a record.
        """
        least, end = self._table[:, _LEAST].copy(), self._table[:, _END].copy()
        past = self._table[:, _OFFSET] + self._table[:, _SIZE] > start
        known = np.ones(len(least), np.bool_)
        if start <= self._log.min_offset:
            end[past] = least[past]
        else:
            rows = np.flatnonzero(past)
            known[rows] = False
            for first in range(0, len(rows), _AT_ONCE):
                part = rows[first : first + _AT_ONCE]
                self._cut(part, start, least, end, known)
        bounds = zip(self._routes, known.tolist(), least.tolist(), end.tolist(), strict=True)
        return {route: (at, stop) for route, is_known, at, stop in bounds if is_known}

    def _cut(self, rows: I8, start: int, least: I8, end: I8, known: Mask) -> None:
        """Find the ends of queues without records past an offset.

        Args:
            rows: the queues, each of which has such records.
            start: the offset.
            least, end: of all queues; set for these.
            known: of all queues; set for those of which that end is among the last entries.
        """
        starts = self._table[rows, _LAST].tolist()
        routes = [self._routes[row] for row in rows.tolist()]
        tails = _tails(
            self._format,
            [
                _LastFile(f"{self._folder}/{topic}/{queue_id}", start, self.file_size)
                for (topic, queue_id), start in zip(routes, starts, strict=True)
            ],
        )
        entries = tails.entries
        ends = entries["physicalOffset"].astype(np.int64) + entries["size"]
        past = (ends > start) & ~self._format.is_filler(entries)
        past &= np.arange(_TAIL) < tails.counts[:, None]
        left = np.argmax(past, axis=1)
        found = (tails.counts > 0) & (np.count_nonzero(past, axis=1) == tails.counts - left)
        found &= (left > 0) | (tails.first_slots <= self._table[rows, _FIRST])
        of = np.flatnonzero(found)
        rows, left, at = rows[of], left[of], tails.first_slots[of]
        end[rows] = at + left
        least[rows] = np.minimum(least[rows], end[rows])
        known[rows] = True
        last = entries[of, np.maximum(left - 1, 0)]
        named = np.flatnonzero((left > 0) & ~self._format.is_filler(last))
        offsets, sizes = last["physicalOffset"].astype(np.int64), last["size"].astype(np.int64)
        slots = end[rows[named]] - 1
        stale = self._stale(self._routes, rows[named], slots, offsets[named], sizes[named])
        known[rows[named[stale]]] = False

    def _stale(
        self, routes: Sequence[tuple[str, int]], rows: I8, slots: I8, offsets: I8, sizes: I8
    ) -> I8:
        """Find last entries that may be left over from before a recovery (`reader.queue`).

        Such an entry leads to another message, or its record cannot be read.

        Args:
            routes: topics and queueIds.
            rows: n, which of them each entry belongs to.
            slots, offsets, sizes: n, the place of each entry, and what it states of its record.

        Returns:
            Which of the n entries.
        """
        order = np.argsort(offsets, kind="stable")
        rooms = np.minimum(sizes, MAX_RECORD_SIZE).astype(np.int32)
        stale = [np.zeros(0, np.int64)]
        for part in slices_of_size(rooms[order], rows=len(order), size=_READ_AT_ONCE):
            of = order[part]
            of = of[self._log.covers(offsets[of], sizes[of].astype(np.int32))]
            names = [routes[row] for row in rows[of].tolist()]
            identity = Identity.each(
                text_pool([topic for topic, _ in names]),
                np.array([queue_id for _, queue_id in names], np.int32),
                slots[of],
            )
            try:
                buffer, positions = self._log.read_entries(offsets[of], rooms[of], None)
            except (SegmentExpiredError, CorruptStoreError):
                stale.append(of)
                continue
            same = belongs_to(decode_records(buffer, positions, rooms[of]), identity)
            stale.append(of[~same])
        return np.concatenate(stale)


class _LastFile(NamedTuple):
    """The last file of a queue.

    Attributes:
        folder: its folder.
        start: the byte of the queue at which it starts.
        size: its bytes.
    """

    folder: str
    start: int
    size: int


class _Found(NamedTuple):
    """Plain queues: topic and queueId, the numbers of a `PlainQueue`, and bytes of a file."""

    routes: list[tuple[str, int]]
    plain: list[tuple[int, ...]]
    file_sizes: list[int]


def _look(
    of: QueueFormat, queues: str, routes: list[tuple[str, int]], log_begin: int, found: _Found
) -> None:
    """Survey some queues, and add those whose files are plain.

    Args:
        of: their format.
        queues: the folder of all queues.
        routes: topic and queueId of each.
        log_begin: the physical offset at which the log begins.
        found: gets the plain ones.
    """
    begins: list[int] = []
    last: list[_LastFile] = []
    listed: list[tuple[str, int]] = []
    for route in routes:
        folder = f"{queues}/{route[0]}/{route[1]}"
        try:
            files = _files(folder)
        except OSError:
            continue
        if files and _are_plain(files, of.size):
            begins.append(files[0][0])
            last.append(_LastFile(folder, *files[-1]))
            listed.append(route)
    tails = _tails(of, last)
    firsts, ends = tails.entries[:, 0], tails.entries[np.arange(len(last)), tails.counts - 1]
    backed = ~of.is_filler(firsts) & (firsts["physicalOffset"].astype(np.int64) >= log_begin)
    columns = zip(
        tails.counts.tolist(), tails.first_slots.tolist(), backed.tolist(),
        ends["physicalOffset"].tolist(), ends["size"].tolist(), strict=True,
    )  # fmt: skip
    for row, (count, at, is_backed, physical_offset, size) in enumerate(columns):
        file, begin = last[row], begins[row]
        first = of.slot(begin)
        if count < 0 or (not count and file.start > begin):
            continue
        least: int | None = first
        if not count:
            plain = first, file.start, first, first, -1, 0
        elif size > MAX_RECORD_SIZE:  # no message: finding the end takes more than a look
            continue
        else:
            if at > first or not is_backed:
                least = _least(of, file.folder, begin, file.size, at + count, log_begin)
            if least is None:
                continue
            plain = first, file.start, least, at + count, physical_offset, size
        found.routes.append(listed[row])
        found.plain.append(plain)
        found.file_sizes.append(file.size)


def _are_plain(files: list[tuple[int, int]], width: int) -> bool:
    """Return whether files are contiguous, and of one size, a multiple of an entry's."""
    begin, size = files[0]
    if size % width or begin % size:
        return False
    return len(files) == 1 or files == [(begin + n * size, size) for n in range(len(files))]


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


class _Tails(NamedTuple):
    """The last entries of n files.

    Attributes:
        entries: n x _TAIL; what follows the last entry is zeros.
        counts: n, how many entries each has; -1 for a file that is not plain: it has holes before
            its end, unwritten entries among these, or too many zeros at its end.
        first_slots: n, the slot of the first of them.
    """

    entries: Entries
    counts: I8
    first_slots: I8


def _tails(of: QueueFormat, files: Sequence[_LastFile]) -> _Tails:
    width = _TAIL * of.size
    data = np.zeros((len(files), width), np.uint8)
    begins = np.zeros(len(files), np.int64)
    is_plain = np.zeros(len(files), np.bool_)
    rows = data.reshape(-1).data
    for number, file in enumerate(files):
        row = rows[number * width : (number + 1) * width]
        with suppress(OSError):
            begin = _read_tail(of, file, row)
            if begin is not None:
                begins[number], is_plain[number] = begin, True
    entries = data.view(of.dtype)
    used = np.zeros(entries.shape, np.bool_)
    for name in of.dtype.names or ():
        used |= entries[name] != 0
    counts = np.where(used.any(axis=1), _TAIL - np.argmax(used[:, ::-1], axis=1), 0)
    is_within = np.arange(_TAIL) < counts[:, None]
    is_plain &= ~(is_within & ~of.is_written(entries)).any(axis=1)
    is_plain &= (counts > 0) | (begins == 0)
    starts = np.array([file.start for file in files], np.int64)
    return _Tails(entries, np.where(is_plain, counts, -1), (starts + begins) // of.size)


def _read_tail(of: QueueFormat, file: _LastFile, out: memoryview) -> int | None:
    """Read the last bytes of a file, and return where they begin; None if it is not plain."""
    descriptor = os.open(f"{file.folder}/{file.start:020}", _FLAGS)
    try:
        end = solid_end(descriptor, file.size)
        if end is None:
            return None
        end = min(of.slot_from(end) * of.size, file.size)
        begin = max(0, end - len(out))
        if os.preadv(descriptor, [out[: end - begin]], begin) < end - begin:
            return None
        return begin if not begin or _is_written_up_to(of, descriptor, begin) else None
    finally:
        os.close(descriptor)


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
