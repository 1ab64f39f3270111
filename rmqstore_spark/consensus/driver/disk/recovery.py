"""Finds the entries that are whole when a member starts, and cuts off what is behind them.

What is known to be committed is on disk. So the log is read from the segment on in which that ends,
in parts, up to the first entry that is not whole: as DLedger does, header, place, number and term.
Other than DLedger, the record inside is checked too, with its CRC, and what is cut is zeros
afterwards. Entries of older segments are those of the index.

A power cut can leave a part of what was not flushed, in any order: names of files without the
files before them, and zeros in any sector of a file.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import written_end
from rmqstore_spark.layout.dledger import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_DTYPE,
    INDEX_UNIT_SIZE,
    REPAIR,
    decode_entry_headers,
    decode_index_units,
    index_unit_position,
)
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record.format import check_crcs, decode_records, walk_records
from rmqstore_spark.layout.spans import I8, U1, Spans

_log = logging.getLogger(__name__)

_PART: Final = 4 << 20
"""Bytes of a segment that are read at once, unless an entry is longer."""
_UNITS: Final = 1 << 16
_SECTOR: Final = 512
"""Bytes that a disk writes as a whole."""
_REMEDY: Final = f"If the other members are sound, repair this one. {REPAIR}"


def recover(log: EntryLog, committed: int, *, had_entries: bool) -> list[tuple[int, int]]:
    """Find the entries of a log that was just opened; return where terms begin: (index, term).

    Args:
        log: its `begin`, `last` and `end` are set.
        committed: the entries up to this one are known to be committed.
        had_entries: whether there was an entry on disk.

    Raises:
        CorruptStoreError: committed entries are damaged or missing, or all entries are. The entries
            are as they were.
    """
    _drop_index_behind_gap(log, committed)
    starts = log.data.starts
    first = _first_unknown(log, starts, committed)
    reader = _EntryReader(log, committed)
    for start in starts[first:]:
        if not reader.read_segment(start):
            break
    if reader.last >= 0:
        log.begin = _first_index(log, starts[0], reader.first) if first else reader.first
        log.last, log.end = reader.last, reader.end
    if log.last < committed:
        cause = f"entries up to {committed} are committed, and the log has whole ones to {log.last}"
        if log.data.apart:
            cause += "; the file before this one is missing, or empty"
        raise CorruptStoreError(
            cause,
            file=log.data.path(log.data.apart[0]) if log.data.apart else log.data.folder,
            remedy=_REMEDY,
        )
    if log.is_empty and had_entries:
        raise CorruptStoreError(
            "this member had entries, as its file currterm tells, and no whole one is here",
            file=log.data.folder,
            remedy="It may have acknowledged some, so it must not vote without them. " + _REMEDY,
        )
    if log.is_empty:
        if log.data.apart or (starts and not _is_blank(log, starts[0])):
            _log.warning("%s has no whole entry, and begins without any.", log.data.folder)
        log.restart()
        return []
    _cut_tail(log)
    return _terms(log)


class _EntryReader:
    """Reads segments, and writes what the index lacks of them.

    Args:
        log: the log.
        committed: these entries are on disk.

    Attributes:
        first: index of the first entry; -1 before there is one.
        last: index of the last one.
        end: the position behind it.
    """

    def __init__(self, log: EntryLog, committed: int) -> None:
        self._log = log
        self._committed = committed
        self.first = self.last = self.end = self._term = -1

    def read_segment(self, start: int) -> bool:
        """Read entries up to the first that is not whole; return whether all are, with a blank."""
        end = start + self._log.segment_size
        at = start if self.last >= 0 else _first_place(self._log, start)
        size = _PART
        while True:
            base = at - (at - start) % _SECTOR
            data = np.frombuffer(self._log.data.read(base, min(size, end - base)), np.uint8)
            walk = walk_records(data, at - base, len(data), base, ENTRY_HEADER_SIZE)
            if not self._take(data, base, walk.positions):
                return False
            at, left = base + walk.at, end - base - walk.at
            unit = int.from_bytes(data[walk.at + 4 : walk.at + 8].tobytes(), "big")
            if walk.stop == plain.STOP_BLANK:
                return unit == left and self.last >= 0
            if walk.stop == plain.STOP_BAD or (walk.stop == plain.STOP_MORE and unit > left):
                return False
            if len(walk.positions):
                size = _PART
            elif base + len(data) == end or _index_at(self._log, at) is None:
                return False
            else:
                size = unit + _SECTOR

    def _take(self, data: U1, base: int, records: I8) -> bool:
        """Take entries that follow the last one; return whether all are whole.

        Args:
            data: a part of a segment.
            base: its position.
            records: n places in it, behind the headers.
        """
        if not len(records):
            return True
        headers, whole = decode_entry_headers(data, records - ENTRY_HEADER_SIZE)
        index, term = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
        places = records + base
        if self.last < 0:
            self.first, self._term = max(int(index[0]), 0), int(term[0])
        next_index = self.last + 1 if self.last >= 0 else self.first
        whole &= headers["position"] == places - ENTRY_HEADER_SIZE
        whole &= index == np.arange(next_index, next_index + len(index))
        whole &= np.diff(term, prepend=self._term) >= 0
        sizes = headers["bodyLength"].astype(np.int32)
        found = check_crcs(decode_records(data, records, sizes), bodies=True)
        whole &= (found.status == plain.OK) & (found.store_size == sizes)
        whole &= found.physical_offset == places
        # No CRC covers topic and properties.
        new = np.flatnonzero(index > self._committed)
        whole[new[found.topic.take(new).with_zeros()]] = False
        whole[new[_lacking_a_sector(found.properties.take(new))]] = False
        count = len(whole) if whole.all() else int(np.argmin(whole))
        if count:
            self._write_units(headers[:count])
            self.last, self._term = int(index[count - 1]), int(term[count - 1])
            self.end = int(places[count - 1]) + int(sizes[count - 1])
        return count == len(whole)

    def _write_units(self, headers: npt.NDArray[np.void]) -> None:
        units = np.empty(len(headers), INDEX_UNIT_DTYPE)
        for name in INDEX_UNIT_DTYPE.names or ():
            units[name] = headers[name]
        data, at = units.tobytes(), int(headers["index"][0])
        if self._log.index.read(index_unit_position(at), len(data)) != data:
            self._log.write_units(at, data)


def _lacking_a_sector(properties: Spans) -> I8:
    """Return the rows of which the part in a sector is zeros: that did not reach the disk.

    What members of this project take has no zeros there. Sectors begin with the buffer.
    """
    rows = properties.with_zeros()
    if not len(rows):
        return rows
    begins = properties.starts[rows]
    ends = begins + properties.lengths[rows]
    firsts = begins // _SECTOR
    counts = (ends - 1) // _SECTOR - firsts + 1
    of = np.repeat(np.arange(len(rows)), counts)
    sectors = firsts[of] + np.arange(len(of)) - np.repeat(counts.cumsum() - counts, counts)
    parts_begin = np.maximum(sectors * _SECTOR, begins[of])
    parts_end = np.minimum(sectors * _SECTOR + _SECTOR, ends[of])
    lengths = (parts_end - parts_begin).astype(np.int32)
    offsets, data = Spans(properties.buffer, parts_begin, lengths).texts()
    return rows[np.unique(of[np.maximum.reduceat(data, offsets[:-1]) == 0])]


def _first_unknown(log: EntryLog, starts: list[int], committed: int) -> int:
    """Return the row of the last segment that begins with a committed entry; 0: there is none."""
    for row in range(len(starts) - 1, 0, -1):
        index = _index_at(log, starts[row])
        if index is not None and index <= committed:
            return row
    return 0


def _first_place(log: EntryLog, start: int) -> int:
    """Return where the first entry of a segment is: at its begin, unless the log begins in it."""
    end = start + log.segment_size if start == log.data.starts[0] else start
    for at in range(start, end, _PART):
        written = np.frombuffer(log.data.read(at, min(_PART, end - at)), np.uint8) != 0
        if written.any():
            # The magic number is 1, in four bytes.
            return max(at + int(written.argmax()) - 3, start)
    return start


def _first_index(log: EntryLog, start: int, read: int) -> int:
    """Return the index of the log's first entry, which is in a segment that was not read."""
    at = _first_place(log, start)
    index = _index_at(log, at)
    if index is None or index >= read:
        raise CorruptStoreError(
            "no entry begins the log", file=log.data.path(at), offset=at - start
        )
    return index


def _index_at(log: EntryLog, position: int) -> int | None:
    """Return the index of the entry that begins at a position; None if none does."""
    headers, valid = decode_entry_headers(
        log.data.read(position, ENTRY_HEADER_SIZE), np.zeros(1, np.int64)
    )
    index = int(headers["index"][0])
    return index if valid[0] and headers["position"][0] == position and index >= 0 else None


def _drop_index_behind_gap(log: EntryLog, committed: int) -> None:
    """Remove index files that follow a missing one: a start writes again what they have."""
    if log.index.apart and index_unit_position(committed) >= log.index.end:
        raise CorruptStoreError(
            f"entries up to {committed} are committed, and the file of the index before this one "
            "is missing, or empty",
            file=log.index.path(log.index.apart[0]), remedy=_REMEDY,
        )  # fmt: skip
    log.index.drop_apart()


def _terms(log: EntryLog) -> list[tuple[int, int]]:
    """Return where terms begin, from the index."""
    terms: list[tuple[int, int]] = []
    for first in range(log.begin, log.last + 1, _UNITS):
        count = min(_UNITS, log.last + 1 - first)
        at = index_unit_position(first)
        units = decode_index_units(log.index.read(at, count * INDEX_UNIT_SIZE))
        if len(units) < count or (units["index"] != np.arange(first, first + count)).any():
            raise CorruptStoreError(
                f"no index of the entries from {first} on", file=log.index.path(at),
                offset=at % log.index.size, remedy=_REMEDY,
            )  # fmt: skip
        of = units["term"].astype(np.int64)
        changes = np.flatnonzero(np.diff(of, prepend=terms[-1][1] if terms else -1))
        terms += [(first + int(row), int(of[row])) for row in changes]
    return terms


def _cut_tail(log: EntryLog) -> None:
    """Remove what is behind the last entry, if there is anything."""
    start = log.end - log.end % log.segment_size
    behind = [each for each in log.data.starts if each >= log.end]
    written = (
        written_end(log.data.path(start), log.end - start) if start in log.data.starts else None
    )
    if behind or written is not None or log.data.apart:
        _log.warning(
            "%s: what follows entry %d at %d is not whole, and is cut off.",
            log.data.folder, log.last, log.end,
        )  # fmt: skip
        log.data.cut(log.end)
    log.index.cut(index_unit_position(log.last + 1))


def _is_blank(log: EntryLog, start: int) -> bool:
    return written_end(log.data.path(start), 0) is None
