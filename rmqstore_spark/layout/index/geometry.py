"""Infer how many slots an index file has: a setting of the broker that no file records.

The header has the number and the record of the last entry that it counts. The unused, zeroed rest
of the file begins after that entry, or after others that a writer has not counted yet. The file's
length allows only every fifth number of slots, and an entry is five times as long as a slot, so one
candidate remains. It is accepted only if the first and the last entry and their slots hold the
values that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import BytesLike, octets
from rmqstore_spark.layout.index.format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_SIZE,
    IndexHeader,
    decode_entries,
    entry_position,
    geometry,
    slot_position,
)

__all__ = ["infer_slots", "nonzero_end", "slots_match"]

_BLOCK: Final = 1 << 20
_ATTEMPTS: Final = 3
_AT_ONCE: Final = 4096
_MOST_UNCOUNTED: Final = 1 << 20  # entries that a writer inserts between two flushes of a header

ReadAt = Callable[[int, int], BytesLike]


def infer_slots(file_size: int, read: ReadAt) -> int | None:
    """Return how many slots an index file has.

    A full file, or one of a broker's default size, costs five small reads. For other files the
    unused rest, which is sparse on disk, is read too.

    Args:
        file_size: in bytes.
        read: reads bytes, given offset and length.

    Returns:
        None if the file holds no key, or is so damaged that no number fits.
    """
    if file_size < HEADER_SIZE:
        return None
    header = IndexHeader.decode(read(0, HEADER_SIZE))
    for _ in range(_ATTEMPTS):
        slots = _infer(file_size, header, read)
        seen, header = header, IndexHeader.decode(read(0, HEADER_SIZE))
        if slots is not None or header == seen:
            return slots
        # A broker has inserted keys in between.
    return None


def _infer(file_size: int, header: IndexHeader, read: ReadAt) -> int | None:
    if header.index_count <= 1:
        return None
    words = (file_size - HEADER_SIZE) // SLOT_SIZE
    candidates = [words - header.index_count * (ENTRY_SIZE // SLOT_SIZE)]
    if file_size == entry_position(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        candidates.insert(0, DEFAULT_SLOTS)
    for slots in candidates:
        if slots_match(file_size, header, slots, read):
            return slots
    slots = _slots_before_the_rest(file_size, header, read)
    return slots if slots_match(file_size, header, slots, read) else None


def slots_match(file_size: int, header: IndexHeader, slots: int, read: ReadAt) -> bool:
    """Return whether a file with keys has this number of slots, from its first and last entry.

    Args:
        file_size: in bytes.
        header: the file's header.
        slots: the number in question.
        read: reads bytes, given offset and length.
    """
    try:
        entries = geometry(file_size, slots)
    except CorruptStoreError:
        return False
    last = header.index_count - 1
    if not 1 <= last < entries:
        return False
    head = decode_entries(read(entry_position(slots, 0), 2 * ENTRY_SIZE))
    tail = decode_entries(read(entry_position(slots, last), ENTRY_SIZE))
    if len(head) != 2 or len(tail) != 1 or _is_unused(head[1]) or _is_unused(tail[0]):
        return False
    return (
        _is_unused(head[0])
        and head["phyOffset"][1] == header.begin_phy_offset
        and head["previous"][1] == 0
        and tail["phyOffset"][0] == header.end_phy_offset
        and 1 <= _slot_of(head[1], slots, read) < entries
        # Greater than `last` if a broker has inserted a key since the header was read.
        and last <= _slot_of(tail[0], slots, read) < entries
    )


def _is_unused(entry: np.void) -> bool:
    return not any(entry.tobytes())


def _slot_of(entry: np.void, slots: int, read: ReadAt) -> int:
    """Return the value of an entry's slot; 0 if the file ends before it."""
    slot = int(entry["keyHash"]) % slots
    return int.from_bytes(octets(read(slot_position(slot), SLOT_SIZE)).tobytes(), "big")


def _slots_before_the_rest(file_size: int, header: IndexHeader, read: ReadAt) -> int:
    """Return the number of slots for which the last entry has the header's number.

    That is the last one that names the header's last record. Entries are in the order of the log.
    Without such an entry, it is the last that is not all zeros.
    """
    end = nonzero_end(read, HEADER_SIZE, file_size)
    # Entries are aligned to their size, counted from the file's end.
    unused = (file_size - end) // ENTRY_SIZE
    after, most = unused, min(unused + _MOST_UNCOUNTED, (file_size - HEADER_SIZE) // ENTRY_SIZE)
    while after < most:
        count = min(_AT_ONCE, most - after)
        at = file_size - (after + count) * ENTRY_SIZE
        held = decode_entries(read(at, count * ENTRY_SIZE))["phyOffset"]
        named = np.flatnonzero(held == header.end_phy_offset)
        if named.size:
            unused = after + count - 1 - int(named[-1])
            break
        if not len(held) or held[0] < header.end_phy_offset:
            break
        after += count
    words = (file_size - HEADER_SIZE) // SLOT_SIZE
    return words - (unused + header.index_count) * (ENTRY_SIZE // SLOT_SIZE)


def nonzero_end(read: ReadAt, start: int, end: int) -> int:
    """Return one past the last byte of a stretch that is not zero; `start` if all are zeros.

    Args:
        read: reads bytes, given offset and length.
        start: where the stretch begins.
        end: one past its last byte.
    """
    while end > start:
        begin = max(start, end - _BLOCK)
        written = np.flatnonzero(octets(read(begin, end - begin)))
        if written.size:
            return begin + int(written[-1]) + 1
        end = begin
    return start
