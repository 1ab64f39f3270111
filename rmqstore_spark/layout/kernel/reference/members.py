"""Check and write entries of a DLedger group: part of `plain`.

An entry is a tuple: index, term, position, size with its header, and its record. See
`layout.dledger`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from rmqstore_spark.layout.kernel.reference.parse import OK, parse, record_crc_differs
from rmqstore_spark.layout.kernel.reference.spans import crc32_spans

_HEADER: Final = struct.Struct(">iiqqqiiii")
_UNIT: Final = struct.Struct(">iqiqq")
_MAGIC: Final = 1
_INTS: Final = 1 << 31
_LONGS: Final = 1 << 63

Entry: TypeAlias = tuple[int, int, int, int, object]
"""Index, term, position, size, and the record."""


def sound_records(records: Sequence[object], positions: Sequence[int]) -> int:
    """Return how many records at the front are sound, and say that they are where they are.

    Args:
        records: n of them, bytes.
        positions: n, of the records in the whole log.

    Raises:
        TypeError: a record is not bytes.
        ValueError: there are not as many positions as records.
    """
    if len(records) != len(positions):
        raise ValueError("records and positions differ in number")
    bodies = [record for record in records if isinstance(record, bytes)]
    if len(bodies) != len(records):
        raise TypeError("a record is not bytes")
    buffer = np.frombuffer(b"".join(bodies), np.uint8)
    sizes = np.array([len(body) for body in bodies], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    longs, ints = np.empty((5, len(bodies)), np.int64), np.empty((14, len(bodies)), np.int32)
    parse(buffer, starts, sizes, longs, ints)
    found = np.empty(len(bodies), np.uint32)
    crc32_spans(buffer, starts + ints[7], ints[8], found)
    good = (ints[13] == OK) & (ints[0] == sizes)
    good &= (found & np.uint32(0x7FFFFFFF)).view(np.int32) == ints[2]
    good &= ~record_crc_differs(buffer, starts, ints[0], ints[12])
    stated = zip(longs[1].tolist(), positions, strict=True)
    good &= np.array([one == other for one, other in stated], np.bool_)
    return len(bodies) if good.all() else int(np.argmin(good))


def write_entries(entries: Sequence[Entry], first: int) -> tuple[int, bytes, bytes]:
    """Write entries that follow each other, by index and directly by position.

    Args:
        entries: some of a log, in order.
        first: number of the first one to write.

    Returns:
        How many there are from it on, what is written of them into the log, and into its index.

    Raises:
        ValueError: there is no such entry, or one is none.
    """
    if not 0 <= first < len(entries):
        raise ValueError("there is no such entry")
    parts: list[bytes] = []
    units: list[bytes] = []
    next_index, end = entries[first][0], entries[first][2]
    for entry in entries[first:]:
        index, term, position, size, record = _read(entry)
        if index != next_index or position != end or end + size >= _LONGS:
            break
        parts += _HEADER.pack(_MAGIC, size, index, term, position, 0, 0, 0, len(record)), record
        units.append(_UNIT.pack(_MAGIC, position, size, index, term))
        next_index, end = index + 1, position + size
    return len(units), b"".join(parts), b"".join(units)


def _read(entry: object) -> tuple[int, int, int, int, bytes]:
    """Return an entry, if it is one."""
    if isinstance(entry, tuple) and len(entry) == 5:
        *numbers, record = entry
        fits = all(isinstance(each, int) and -_LONGS <= each < _LONGS for each in numbers)
        if isinstance(record, bytes) and fits:
            index, term, position, size = numbers
            if size < _INTS and size == _HEADER.size + len(record):
                return index, term, position, size, record
    raise ValueError("an entry is not (index, term, position, size, record) with a size that fits")
