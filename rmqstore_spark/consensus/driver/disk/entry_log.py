"""The entries of a member and their index: `data/` and `index/`, in DLedger's format.

Entries lie one behind the other. One that does not fit into what is left of a segment, with eight
bytes more, begins the next; all members do so, since an entry has its place in its header. The
index is written with each entry, and is not authoritative: a start writes that of the last segments
again. So it is flushed when a segment begins, and before a commit index is saved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from rmqstore_spark.consensus.driver.disk.segmented import DiskRoom, SegmentedFile, Unflushed
from rmqstore_spark.consensus.messages import LedgerEntry
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.dledger import (
    BLANK_SIZE,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    IndexUnit,
    decode_entry_headers,
    decode_index_unit,
    decode_index_units,
    encode_blank,
    entry_position,
    index_unit_position,
)

INDEX_FILE_SIZE: Final = 5 * 1024 * 1024 * INDEX_UNIT_SIZE
"""Bytes of an index file (`DLedgerConfig.mappedFileSizeForEntryIndex`)."""


class EntryLog:
    """The files of entries, for writing. One thread uses it.

    Args:
        folder: `dledger-{selfId}`.
        segment_size: `mappedFileSizeCommitLog`; the same for all members.
        begins_at: position of its first entry, behind an older log of the store, at the begin of a
            segment; 0: there is none, and it may begin anywhere.

    Attributes:
        begin: index of the first entry; behind `last` if there is none.
        last: index of the last entry.
        end: position behind the last entry.
        room: of its disk.
    """

    def __init__(self, folder: str, segment_size: int, begins_at: int = 0) -> None:
        self.data = SegmentedFile(os.path.join(folder, "data"), segment_size, ahead=True)
        self.index = SegmentedFile(os.path.join(folder, "index"), INDEX_FILE_SIZE)
        self.segment_size = segment_size
        self.begins_at = begins_at
        self.room = DiskRoom(self.data.folder)
        self.begin = 0
        self.last = -1
        self.end = begins_at

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self.last < self.begin

    def next_position(self, size: int) -> int:
        """Return where the next entry of this size, with its header, has to begin."""
        return entry_position(self.end, size, self.segment_size)

    def has_place_for(self, entries: Sequence[LedgerEntry]) -> bool:
        """Return whether new entries are where this log would write them, one behind the other.

        A log without entries begins anywhere in a segment, unless an older log is before it.
        """
        end = self.end
        if self.is_empty:
            end = self.begins_at or entries[0].position
        segment_end = 0  # of the one that `end` lies in, without its blank
        for entry in entries:
            position, size = entry.position, entry.size
            if position != end or end + size > segment_end:
                if position != entry_position(end, size, self.segment_size):
                    return False
                left = self.segment_size - position % self.segment_size
                segment_end = position + left - BLANK_SIZE
            end = position + size
        return True

    def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Write entries behind the last one.

        Raises:
            StoreWriteError: they could not be written.
        """
        if self.is_empty:
            first = entries[0]
            self.data.clear()
            self.index.clear()
            self.begin, self.last, self.end = first.index, first.index - 1, first.position
        units: list[bytes] = []
        row = 0
        while row < len(entries):
            first = entries[row]
            assert first.index == self.last + 1, "entries follow each other"
            if first.position != self.end:
                self.data.write(self.end, encode_blank(first.position - self.end))
            count, data, written = kernel.active.write_entries(entries, row)
            self.data.write(first.position, data)
            units.append(written)
            row += count
            self.last, self.end = first.index + count - 1, first.position + len(data)
        self.write_units(entries[0].index, b"".join(units))

    def write_units(self, first: int, units: bytes) -> None:
        """Write the index units of entries from `first` on."""
        at = index_unit_position(first)
        while units:
            room = INDEX_FILE_SIZE - at % INDEX_FILE_SIZE
            self.index.write(at, units[:room])
            at, units = at + room, units[room:]

    def unit(self, index: int) -> IndexUnit:
        """Return where an entry of this log is.

        Raises:
            CorruptStoreError: the index is damaged.
        """
        at = index_unit_position(index)
        return decode_index_unit(
            self.index.read(at, INDEX_UNIT_SIZE), index, file=self.index.path(at)
        )

    def read(self, first: int, last: int) -> tuple[LedgerEntry, ...]:
        """Return entries.

        Raises:
            CorruptStoreError: the index is damaged.
        """
        at = index_unit_position(first)
        units = decode_index_units(self.index.read(at, (last - first + 1) * INDEX_UNIT_SIZE))
        if not np.array_equal(units["index"], np.arange(first, last + 1)):
            raise CorruptStoreError(
                f"no valid index units of DLedger entries {first} to {last}",
                file=self.index.path(at), offset=at,
            )  # fmt: skip
        begin = int(units["position"][0])
        data = self.data.read(begin, int(units["position"][-1] + units["size"][-1]) - begin)
        entries = []
        for _, position, size, index, term in units.tolist():
            at = position - begin
            body = data[at + ENTRY_HEADER_SIZE : at + size]
            entries.append(LedgerEntry(index, term, position, size, body))
        return tuple(entries)

    def within(self, first: int, last: int, most: int) -> int:
        """Return the last entry up to which all from `first` on have at most `most` bytes.

        That of `first` counts, however long it is.
        """
        begin = self.unit(first).position
        if self.unit(last).end - begin <= most:
            return last
        low, high = first, last  # the first fits, the last does not
        while low + 1 < high:
            middle = (low + high) // 2
            if self.unit(middle).end - begin <= most:
                low = middle
            else:
                high = middle
        return low

    def cut(self, last: int) -> None:
        """Forget the entries behind `last`, which is one of this log.

        Raises:
            StoreWriteError: a file could not be changed.
        """
        self.end = self.unit(last).end
        self.last = last
        self.data.cut(self.end)
        self.index.cut(index_unit_position(last + 1))

    def oldest_written(self) -> float:
        """Return when the first segment was last written, in seconds since 1970."""
        with explained(self.data.folder, "read"):
            return os.path.getmtime(self.data.path(self.data.starts[0]))

    def second_segment(self) -> int | None:
        """Return the index of the first entry of the second segment; None if there is none."""
        starts = self.data.starts
        if len(starts) < 2 or self.end <= starts[1]:
            return None
        headers, valid = decode_entry_headers(
            self.data.read(starts[1], ENTRY_HEADER_SIZE), np.zeros(1, np.int64)
        )
        return int(headers["index"][0]) if valid[0] else None

    def expire(self, begin: int) -> None:
        """Remove the first segment.

        Args:
            begin: the first entry of the second one.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        self.begin = begin
        self.data.remove_first()
        while index_unit_position(begin) >= self.index.starts[0] + INDEX_FILE_SIZE:
            self.index.remove_first()

    def restart(self) -> None:
        """Forget all entries.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        self.data.clear()
        self.index.clear()
        self.last = self.begin - 1
        if self.begins_at:
            self.end = self.begins_at
            self.data.create(self.begins_at)  # by which a start knows where the older log ends

    def take_unflushed(self) -> Unflushed:
        """Return the entries that were written since the last time; the index if files changed.

        A start writes the index of the last segments again. Older ones have to be on disk by then.
        """
        unflushed = Unflushed()
        if self.data.has_other_files or self.index.has_other_files:
            self.index.take_unflushed(unflushed)
        self.data.take_unflushed(unflushed)
        return unflushed

    def take_unflushed_index(self) -> Unflushed:
        """Return what of the index was written since the last time."""
        unflushed = Unflushed()
        self.index.take_unflushed(unflushed)
        return unflushed

    def close(self) -> None:
        """Close the files."""
        self.data.close()
        self.index.close()
