"""Reads one ConsumeQueue: its offsets, its entries, and the first offset at or past a time.

The log is authoritative, and queues can be rebuilt from it: an entry counts only if the log holds
its record. See docs/format.md, "A ConsumeQueue entry" (upstream: ConsumeQueue).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptRecordError, CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.segments import Segments, read_ranges
from rmqstore_spark.files.systems.base import Listing
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries, Entry, EntryColumns, QueueFormat
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.dispatches import belongs_to
from rmqstore_spark.layout.record.format import Records, decode_records, states_place
from rmqstore_spark.layout.spans import I8, text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog

BLOCK: Final = 200
"""Entries that take about as long to read as one."""

_NO_ENTRY: Final = Entry(-1, 0, is_filler=False)


class ReadAhead:
    """What has been read of a queue before it asks for it; see `reader.queue_ends`.

    Args:
        size: bytes of an entry.

    Attributes:
        records: the bytes of records, by physical offset.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._single: dict[int, bytes] = {}
        self._long: list[tuple[int, int, bytes]] = []  # few: it costs more to take them to pieces
        self.records: dict[int, bytes] = {}

    def add(self, first: int, data: bytes) -> None:
        """Take the bytes of entries, from that of an offset on."""
        if len(data) == self._size:
            self._single[first] = data
        else:
            self._long.append((first, first + len(data) // self._size, data))

    def entries(self, start: int, end: int) -> bytes:
        """Return the bytes of the entries from one offset to another; none unless all are here."""
        if end - start == 1 and start in self._single:
            return self._single[start]
        for first, last, data in self._long:
            if first <= start and end <= last:
                return data[(start - first) * self._size : (end - first) * self._size]
        return b""


class Queue:
    """A queue of a store, as of the last lookup of its offsets.

    Args:
        queue_format: the format of its files.
        log: the CommitLog that its entries point into.
        topic: its topic.
        queue_id: its number.
        segments: its files.
        ext: returns the files of the extension units of a queue; None if they are not needed.
        cut: returns the physical offset past which no entry counts, and whether the store's broker
            was killed. Its argument is the end of an entry's record. If that is past the known end
            of the log, `cut` lists the log again.

    Attributes:
        format: the format of its files.
        ahead: what has been read ahead for a lookup of the offsets; None otherwise.
    """

    def __init__(
        self,
        queue_format: QueueFormat,
        log: CommitLog,
        topic: str,
        queue_id: int,
        segments: Segments,
        ext: Callable[[str, int], Segments] | None,
        cut: Callable[[int], tuple[int, bool]],
    ) -> None:
        self.format = queue_format
        self._size = queue_format.size
        self._log = log
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self._find_ext = ext
        self._cut = cut
        self._max: int | None = None
        self._min: int | None = None
        self.ahead: ReadAhead | None = None

    def __repr__(self) -> str:
        return f"Queue({self.topic!r}, {self.queue_id})"

    @property
    def first_slot(self) -> int:
        """Offset of the first entry in the files, including expired and filler entries."""
        return self.format.slot_from(self.segments.min_offset)

    @property
    def knows_ends(self) -> bool:
        """Whether both offsets have been looked up."""
        return self._max is not None and self._min is not None

    @property
    def max_offset(self) -> int:
        """One past the last entry whose record is in the log."""
        if self._max is None:
            self._max = self._find_max()
        return self._max

    @property
    def min_offset(self) -> int:
        """The first entry whose record is still in the log; `max_offset` if there is none."""
        if self._min is None:
            self._min = self._find_min()
        return self._min

    @property
    def known_ends(self) -> tuple[int | None, int | None]:
        """Both offsets as they were looked up last; None for one that is not known."""
        return self._min, self._max

    def forget(self, listing: Listing | None = None) -> None:
        """Forget the offsets. They are looked up again on their next use.

        Args:
            listing: what its folder holds; without it, the folder is listed.
        """
        self.segments.refresh(listing)
        self._min = self._max = None

    def refresh(self, *, relist: bool = False) -> bool:
        """Look for new and expired entries. Return whether the offsets changed.

        Args:
            relist: also list the folder again. If its last file is full, it is always listed.
        """
        before = self.known_ends
        self.doubt(relist=relist)
        return before != (self.min_offset, self.max_offset)

    def doubt(self, *, relist: bool = False, listing: Listing | None = None) -> None:
        """Forget each offset that does not hold any more.

        Args:
            relist: as for `refresh`.
            listing: with `relist`: what the folder holds now, if that is known.
        """
        if relist:
            self.segments.refresh(listing)
            self._max = None
        elif self._max is not None and not self._same_end():
            self._max = None
        if self._min is not None and not self.is_backed(self._min):
            self._min = None

    def _same_end(self) -> bool:
        """Return whether the known end still holds: the last entry is there, the next is not."""
        assert self._max is not None  # noqa: S101  # the caller looked
        is_full = self._max * self._size >= self.segments.end_offset
        if is_full and self.segments.refresh():
            return False
        return not self.is_written(self._max) and (
            self._max <= self.first_slot or self.is_written(self._max - 1)
        )

    def entries(self, start: int, end: int) -> Entries:
        """Read the entries of a range of offsets.

        Args:
            start: first offset.
            end: one past the last.

        Returns:
            `end - start` entries, in the dtype of the format.

        Raises:
            SegmentExpiredError: a file of the queue has expired.
            CorruptStoreError: the range reaches past the end of the files.
        """
        return self.format.decode(self.entry_bytes(start, end))

    def entry_bytes(self, start: int, end: int) -> bytes:
        """Read entries like `entries`, as bytes."""
        if end <= start:
            return b""
        data = b"" if self.ahead is None else self.ahead.entries(start, end)
        return data or self.segments.read_range(start * self._size, (end - start) * self._size)

    def live_columns(self, start: int, end: int) -> EntryColumns:
        """Read entries like `live_entries`, as columns."""
        columns, live = self.format.split(self.entry_bytes(start, end))
        if not live:
            self.live_entries(start, end)
        return columns

    def live_entries(self, start: int, end: int) -> Entries:
        """Read entries like `entries`, each of which must be that of a message, or void.

        Raises:
            CorruptStoreError: an entry is empty or damaged.
        """
        found = self.entries(start, end)
        live = self.format.is_message(found) | self.format.is_void(found)
        if not live.all():
            slot = start + int(np.argmin(live))
            segment = self.segments.locate(slot * self._size)
            raise CorruptStoreError(
                f"the entry of offset {slot} of {self.topic}/{self.queue_id} is empty or damaged",
                file=segment.path,
                offset=slot * self._size - segment.start,
            )
        return found

    def entries_in(self, slots: I8) -> tuple[npt.NDArray[np.bool_], Entries]:
        """Read the entries of some offsets, in any order.

        Args:
            slots: n offsets.

        Returns:
            Which of the n the files have, and the entries of those.
        """
        there = (slots >= self.first_slot) & (slots < self.segments.end_offset // self._size)
        places = slots[there] * self._size
        lengths = np.full(len(places), self._size)
        covered = self.segments.covers(places, lengths)
        there[there] = covered
        buffer, at = self.segments.read_entries(places[covered], lengths[covered])
        return there, values_at(buffer, self.format.dtype, at)

    def unit_heads(self, addresses: I8) -> tuple[I8, npt.NDArray[np.void]]:
        """Read the heads of the extension units at some addresses, in any order.

        Args:
            addresses: n addresses that entries hold in place of a tagsCode.

        Returns:
            The rows whose units are whole, and the head of each (`QueueFormat.unit_heads`).
        """
        width = self.format.unit_head_size
        offsets = self.format.unit_offsets(addresses)
        there = np.flatnonzero(self.ext.covers(offsets, np.full(len(offsets), width)))
        buffer, at = np.zeros(0, np.uint8), np.zeros(0, np.int64)
        if len(there):
            buffer, at = self.ext.read_entries(offsets[there], np.full(len(there), width))
        heads, whole = self.format.unit_heads(buffer, at)
        return there[whole], heads[whole]

    @cached_property
    def ext(self) -> Segments:
        """The files of its extension units; empty if it has none."""
        assert self._find_ext is not None  # noqa: S101  # who reads units opens a queue with them
        return self._find_ext(self.topic, self.queue_id)

    def physical_offset(self, offset: int) -> int:
        """Return the physical offset of the record of an offset."""
        entry = self._entry(offset)
        if entry.names_record:
            return entry.physical_offset
        return int(self.live_entries(offset, offset + 1)["physicalOffset"][0])

    def stated_offset(self, offset: int) -> int:
        """Return the physical offset that an entry states, even if the entry is damaged."""
        return self._entry(offset).physical_offset

    def stated_record(self, offset: int) -> tuple[int, int]:
        """Return physical offset and size of the record that an entry states."""
        entry = self._entry(offset)
        return entry.physical_offset, entry.size

    def is_whole(self, offset: int) -> bool:
        """Return whether one file holds the whole entry of an offset."""
        at = offset * self._size
        return self.segments.locate(at).end - at >= self._size

    def offset_at(self, timestamp: int) -> int | None:
        """Find the first offset whose storeTimestamp is at or past a time; None if there is none.

        Args:
            timestamp: milliseconds since the epoch.

        Raises:
            CorruptRecordError: a record that the search reads is damaged.
        """
        # The keys are read from disk, one for each step of the search.
        slots = range(self.max_offset)
        found = bisect_left(slots, timestamp, self.min_offset, key=self._stored_at)
        return found if found < self.max_offset else None

    def _stored_at(self, offset: int) -> int:
        physical, record = self._record(offset)
        if record is None or record.status[0] != 0:
            file, at = self._log.place(physical)
            raise CorruptRecordError("no whole record begins here", file=file, offset=at)
        return int(record.store_timestamp[0])

    def _record(self, offset: int) -> tuple[int, Records | None]:
        """Read the record of an entry as it is in the log; None if the log cannot hold it."""
        entry = self.live_entries(offset, offset + 1)
        physical, size = int(entry["physicalOffset"][0]), int(entry["size"][0])
        if not self._log.covers(
            entry["physicalOffset"].astype(np.int64), entry["size"].astype(np.int32)
        )[0]:
            return physical, None
        data = b"" if self.ahead is None else self.ahead.records.get(physical, b"")
        raw = np.frombuffer(data or self._log.read(physical, min(size, MAX_RECORD_SIZE)), np.uint8)
        return physical, decode_records(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))

    def _entry(self, slot: int) -> Entry:
        data = b"" if self.ahead is None else self.ahead.entries(slot, slot + 1)
        data = data or self.segments.read(slot * self._size, self._size)
        return self.format.entry(data) if len(data) == self._size else _NO_ENTRY

    def is_written(self, slot: int) -> bool:
        """Return whether there is an entry in a slot."""
        try:
            return self._entry(slot).is_written
        except (SegmentExpiredError, CorruptStoreError):
            return False

    def is_backed(self, slot: int) -> bool:
        """Return whether a slot below the maximum is a message that has not expired.

        A damaged entry counts as such a message, so that reading it reports the damage.
        """
        try:
            entry = self._entry(slot)
        except (SegmentExpiredError, CorruptStoreError):
            return False
        if entry.is_filler:
            return False
        return not entry.is_written or entry.physical_offset >= self._log.min_offset

    def _find_max(self) -> int:
        end = self.written_end()
        first = self.first_slot
        if end == first:
            return end
        physical, size, _ = self._entry(end - 1)
        log_end, _ = self._cut(physical + size)
        if physical + size > log_end:
            end = bisect_left(range(end), True, first, key=lambda slot: self._past(slot, log_end))
        if end > first and self._is_stale(end - 1):
            end = bisect_left(range(end), True, first, key=self._is_stale)
        return end

    def written_end(self) -> int:
        """Return one past the last written entry. Entries are written in order."""
        end = self._written_in_known_files()
        # A full file may be followed by one that was created after the folder was listed.
        while end * self._size >= self.segments.end_offset and self.segments.refresh():
            end = self._written_in_known_files()
        return end

    def _written_in_known_files(self) -> int:
        for segment in reversed(list(self.segments)):
            first, last = self.format.slot_from(segment.start), self.format.slot(segment.end)
            used = min(self.format.slot_from(self.segments.used_end(segment)), last)
            if used == last or self.is_written(used):  # the hole was not one any more
                used = last
            end = self._written_between(first, used)
            if end > first:
                return end
        return self.first_slot

    def _written_between(self, first: int, last: int) -> int:
        """Return one past the last written entry of the slots `first` to `last - 1`.

        If the broker was killed, a crash lost the unwritten entry, and those after it do not count.
        In other stores the unwritten entry is damage, and reading it must report that.
        """
        blocks = -(-(last - first) // BLOCK)
        end, block = first, 0
        while True:
            empty = bisect_left(
                range(blocks), True, block, key=lambda b: not self.is_written(first + b * BLOCK)
            )
            if empty > block:
                end = max(end, self._written_in_block(first, empty - 1, last))
            if empty >= blocks or self._cut(0)[1]:
                return end
            behind = self._written_in_block(first, empty, last)
            if behind > first + empty * BLOCK:
                end, block = behind, empty + 1
                continue
            later = [b for b in (empty + 1, empty + 8) if b < blocks]
            block = next((b for b in later if self.is_written(first + b * BLOCK)), -1)
            if block < 0:
                return end

    def _written_in_block(self, first: int, block: int, last: int) -> int:
        """Return one past the last written entry of a block; its first slot if there is none."""
        start = first + block * BLOCK
        data = self.entry_bytes(start, min(start + BLOCK, last))
        used = self.format.slot_from(len(data.rstrip(b"\0")))
        latest = data[(used - 1) * self._size : used * self._size]
        if len(latest) == self._size and self.format.entry(latest).is_written:
            return start + used  # as a writer leaves it
        written = np.flatnonzero(self.format.is_written(self.format.decode(data)))
        return start + (int(written[-1]) + 1 if len(written) else 0)

    def _past(self, slot: int, log_end: int) -> bool:
        physical, size, filler = self._entry(slot)
        return not filler and physical + size > log_end

    def _is_stale(self, slot: int) -> bool:
        """Return whether a recovery left an entry over: the log holds another message there.

        A broker that cuts its log does not wipe the entries of the records that it cuts off. An
        entry whose record is damaged is not stale: reading it must report the damage.
        """
        entry = self._entry(slot)
        if entry.is_filler or self._leads_to_its_own(slot, entry):
            return False
        _, record = self._record(slot)
        if record is None or record.status[0] != 0:
            return False
        identity = Identity.each(
            text_pool([self.topic]),
            np.array([self.queue_id], np.int32),
            np.array([slot], np.int64),
        )
        return not bool(belongs_to(record, identity)[0])

    def _leads_to_its_own(self, slot: int, entry: Entry) -> bool:
        """Return whether an entry leads to its message, as a quick look shows."""
        if not entry.names_record or entry.size > MAX_RECORD_SIZE:
            return False
        data = b"" if self.ahead is None else self.ahead.records.get(entry.physical_offset, b"")
        try:
            data = data or self._log.read(entry.physical_offset, entry.size)
        except (SegmentExpiredError, CorruptStoreError):
            return False
        return states_place(data, self.topic.encode("utf-8", "replace"), self.queue_id, slot)

    def _find_min(self) -> int:
        first, end = self.first_slot, self.max_offset
        if first < end and self.is_backed(first):
            return first
        return bisect_left(range(end), True, first, key=self.is_backed)


def read_entry_bytes(wanted: Sequence[tuple[Queue, int, int]]) -> list[bytes]:
    """Read entries of several queues, as bytes, in as few requests as possible.

    Args:
        wanted: n queues of one store, the first offset of each, and one past the last.

    Raises:
        SegmentExpiredError, CorruptStoreError: as `Queue.entries`.
    """
    return read_ranges(
        [
            (queue.segments, start * queue.format.size, max(0, end - start) * queue.format.size)
            for queue, start, end in wanted
        ]
    )


def stated_offsets(wanted: Sequence[tuple[Queue, int]]) -> list[int]:
    """Return the physical offsets that entries state, even if they are damaged.

    Args:
        wanted: n queues of one store, and an offset in each.

    Raises:
        SegmentExpiredError, CorruptStoreError: as `Queue.stated_offset`.
    """
    try:
        data = read_entry_bytes([(queue, offset, offset + 1) for queue, offset in wanted])
    except (SegmentExpiredError, CorruptStoreError):
        return [queue.stated_offset(offset) for queue, offset in wanted]
    return [
        queue.format.entry(entry).physical_offset
        if queue.is_whole(offset)
        else queue.stated_offset(offset)
        for (queue, offset), entry in zip(wanted, data, strict=True)
    ]
