"""Finds the entries that are whole when a member starts, and cuts off what is behind them.

The last segments are read entry by entry, as DLedger does: header, place, number and term. Other
than DLedger, the record inside is checked too, with its CRC, and what is cut is zeros afterwards.
Entries of older segments are those of the index.
"""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.consensus.driver.entry_log import EntryLog
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import written_end
from rmqstore_spark.layout.dledger import (
    BLANK_MAGIC,
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    INDEX_UNIT_SIZE,
    IndexUnit,
    decode_index_units,
    encode_index_unit,
    index_unit_position,
)
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record.format import check_crcs, decode_records
from rmqstore_spark.layout.spans import I4, I8, U1

_log = logging.getLogger(__name__)

_HEADER: Final = struct.Struct(">iiqqqiiii")
_SEGMENTS: Final = 3
"""How many of the last segments are read."""
_UNITS: Final = 1 << 16
_SECTOR: Final = 512
"""Bytes that a disk writes as a whole."""


class _Found(NamedTuple):
    """Entries of a segment that may be whole.

    Attributes:
        units: where they are.
        is_closed: whether a blank follows them.
    """

    units: list[IndexUnit]
    is_closed: bool


def _sound(buffer: U1, starts: I8, sizes: I4, positions: I8) -> int:
    found = check_crcs(decode_records(buffer, starts, sizes), bodies=True)
    good = (found.status == plain.OK) & (found.store_size == sizes)
    good &= found.physical_offset == positions
    return len(good) if good.all() else int(np.argmin(good))


def recover(log: EntryLog, committed: int) -> list[tuple[int, int]]:
    """Find the entries of a log that was just opened; return where terms begin: (index, term).

    Args:
        log: its `begin`, `last` and `end` are set.
        committed: the entries up to this one are known to be committed.

    Raises:
        CorruptStoreError: committed entries are damaged or missing.
    """
    starts = log.data.starts
    found: list[IndexUnit] = []
    for start in starts[-_SEGMENTS:]:
        part = _read_segment(log, start, found[-1] if found else None, committed)
        found += part.units
        if not part.is_closed:
            break
    if found:
        log.begin = _first_index(log, starts, found[0])
        log.last, log.end = found[-1].index, found[-1].end
        log.write_units(found[0].index, b"".join(map(encode_index_unit, found)))
    if log.last < committed:
        raise CorruptStoreError(
            f"entries up to {committed} are committed, and the log has whole ones to {log.last}",
            file=log.data.folder,
            remedy="If the other members are sound, move the folder of this member away: it then "
            "joins its group without entries, and gets them from the leader.",
        )
    if log.is_empty:
        if starts and not _is_blank(log, starts[0]):
            _log.warning("%s has no whole entry, and begins without any.", log.data.folder)
        log.restart()
        return []
    _cut_tail(log)
    return _terms(log)


def _read_segment(log: EntryLog, start: int, before: IndexUnit | None, committed: int) -> _Found:
    """Read the entries of a segment up to its blank, or the first that is not whole."""
    data = log.data.read(start, log.segment_size)
    at = 0 if before is not None else _first_place(log, start, data)
    units: list[IndexUnit] = []
    is_closed = False
    while at + _HEADER.size <= len(data) or at + 8 <= len(data):
        magic, size = struct.unpack_from(">ii", data, at)
        if magic == BLANK_MAGIC and size == len(data) - at and (units or before):
            is_closed = True
            break
        if at + _HEADER.size > len(data):
            break
        magic, size, index, term, position, _, _, _, length = _HEADER.unpack_from(data, at)
        if magic != ENTRY_MAGIC or position != start + at or length != size - ENTRY_HEADER_SIZE:
            break
        if length <= 0 or at + size > len(data) or index < 0:
            break
        if before is not None and (index != before.index + 1 or term < before.term):
            break
        before = IndexUnit(position, size, index, term)
        units.append(before)
        at += size
    if not units:
        return _Found([], is_closed)
    places = np.array([unit.position for unit in units], np.int64) + ENTRY_HEADER_SIZE
    sizes = np.array([unit.size for unit in units], np.int32) - ENTRY_HEADER_SIZE
    buffer = np.frombuffer(data, np.uint8)
    sound = _sound(buffer, places - start, sizes.astype(np.int32), places)
    new = [row for row in range(sound) if units[row].index > committed]
    if new:
        properties = decode_records(buffer, places[new] - start, sizes[new]).properties
        for row, at, length in zip(new, properties.starts, properties.lengths, strict=True):
            if _lacks_a_sector(buffer, int(at), int(at) + int(length)):
                sound = row
                break
    return _Found(units[:sound], is_closed and sound == len(units))


def _lacks_a_sector(data: U1, begin: int, end: int) -> bool:
    """Return whether the part of properties in a sector is zeros: that did not reach the disk.

    No CRC covers properties, and text has no zeros.
    """
    while begin < end:
        sector = min(begin - begin % _SECTOR + _SECTOR, end)
        if not data[begin:sector].any():
            return True
        begin = sector
    return False


def _first_place(log: EntryLog, start: int, data: bytes) -> int:
    """Return where the first entry of a segment is: at its begin, unless the log begins in it."""
    if data[:4] != b"\0\0\0\0" or start != log.data.starts[0]:
        return 0
    first = np.flatnonzero(np.frombuffer(data, np.uint8))
    return int(first[0]) - 3 if len(first) and first[0] >= 3 else 0


def _first_index(log: EntryLog, starts: list[int], read: IndexUnit) -> int:
    """Return the index of the log's first entry, which is in a segment that was not read."""
    if len(starts) <= _SEGMENTS:
        return read.index
    data = log.data.read(starts[0], log.segment_size)
    at = _first_place(log, starts[0], data)
    magic, _, index, _, position, *_ = _HEADER.unpack_from(data, at)
    if magic != ENTRY_MAGIC or position != starts[0] + at or not 0 <= index < read.index:
        raise CorruptStoreError("no entry begins the log", file=log.data.path(starts[0]), offset=at)
    return int(index)


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
                offset=at % log.index.size,
                remedy="Move the folder of this member away: it then joins its group without "
                "entries, and gets them from the leader.",
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
    if behind or written is not None:
        _log.warning(
            "%s: what follows entry %d at %d is not whole, and is cut off.",
            log.data.folder, log.last, log.end,
        )  # fmt: skip
        log.data.cut(log.end)
    log.index.cut(index_unit_position(log.last + 1))


def _is_blank(log: EntryLog, start: int) -> bool:
    return written_end(log.data.path(start), 0) is None
