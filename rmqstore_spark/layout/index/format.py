"""Decode and encode an IndexFile, which maps the hash of a key to the records that have it.

    header 40 | slots 4 each | entries 20 each                   big-endian, signed

    header   beginTimestamp 8 | endTimestamp 8 | beginPhyOffset 8 | endPhyOffset 8
             | hashSlotCount 4 | indexCount 4
    entry    keyHash 4 | phyOffset 8 | timeDiff 4 | previous 4

A slot holds the number of its newest entry, and `previous` leads to the next older one. Numbers
only decrease along a chain, and entry 0 is never used. The numbers of slots and entries are not
recorded (`index.geometry` infers them). Hashes collide, so a match must be checked against its
record. The whole file can be rebuilt from the CommitLog; it has no checksum.

See docs/format.md, "An IndexFile"; upstream `IndexFile`, `IndexHeader`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import BytesLike, octets, records_in

__all__ = [
    "DEFAULT_ENTRIES",
    "DEFAULT_SLOTS",
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "HEADER_SIZE",
    "SLOT_DTYPE",
    "SLOT_SIZE",
    "IndexHeader",
    "chain",
    "decode_entries",
    "decode_slots",
    "entry_position",
    "follow_chain",
    "geometry",
    "slot_position",
]

_HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = _HEADER.size

SLOT_DTYPE: Final = np.dtype(">i4")
SLOT_SIZE: Final = SLOT_DTYPE.itemsize

ENTRY_DTYPE: Final = np.dtype(
    [("keyHash", ">i4"), ("phyOffset", ">i8"), ("timeDiff", ">i4"), ("previous", ">i4")]
)
ENTRY_SIZE: Final = ENTRY_DTYPE.itemsize

DEFAULT_SLOTS: Final = 5_000_000
"""A broker's default `maxHashSlotNum`."""
DEFAULT_ENTRIES: Final = 20_000_000
"""A broker's default `maxIndexNum`."""

_MAX_WINDOW: Final = 1 << 16

Slots = npt.NDArray[np.int32]
IndexEntries = npt.NDArray[np.void]


@dataclass(frozen=True)
class IndexHeader:
    """The header of an IndexFile; times in milliseconds.

    Attributes:
        begin_timestamp: storeTimestamp of the first key's record; until there is a key, that of
            the previous file's last record.
        begin_phy_offset: physical offset of the same record.
        hash_slot_count: slots in use.
        index_count: the number of the next entry; 0 in a file that was just created.
    """

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1

    @classmethod
    def decode(cls, data: BytesLike, *, file: str = "") -> IndexHeader:
        """Decode the header at the start of `data`.

        Raises:
            CorruptStoreError: `data` is too short; the message names `file`.
        """
        raw = octets(data)[:HEADER_SIZE].tobytes()
        if len(raw) < HEADER_SIZE:
            raise CorruptStoreError(
                f"an index file must have a header of {HEADER_SIZE} bytes, not {len(raw)}",
                file=file,
            )
        return cls(*_HEADER.unpack(raw))

    def encode(self) -> bytes:
        """Return the header's 40 bytes."""
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count,
        )

    @property
    def next_entry(self) -> int:
        """The number of the next entry: at least 1."""
        return max(self.index_count, 1)


def geometry(file_size: int, slots: int, *, file: str = "") -> int:
    """Return the file's capacity in entries, the unused entry 0 included.

    Raises:
        CorruptStoreError: a file of `file_size` bytes cannot have this number of slots.
    """
    rest = file_size - HEADER_SIZE - slots * SLOT_SIZE
    if slots < 1 or rest < 0 or rest % ENTRY_SIZE:
        raise CorruptStoreError(
            f"an index file of {file_size} bytes cannot have {slots} slots", file=file
        )
    return rest // ENTRY_SIZE


def slot_position(slot: int) -> int:
    """Return the byte offset of a slot in its file."""
    return HEADER_SIZE + slot * SLOT_SIZE


def entry_position(slots: int, entry: int) -> int:
    """Return the byte offset of an entry in a file with `slots` slots."""
    return slot_position(slots) + entry * ENTRY_SIZE


def decode_slots(data: BytesLike, slots: int) -> Slots:
    """Return a view of the slots in a whole file's bytes; fewer if the bytes end early."""
    raw = octets(data)[HEADER_SIZE : slot_position(slots)]
    return raw[: raw.size // SLOT_SIZE * SLOT_SIZE].view(SLOT_DTYPE)


def decode_entries(data: BytesLike) -> IndexEntries:
    """Return a view of the whole entries in `data`."""
    return records_in(data, ENTRY_DTYPE)


def chain(
    key_hash: int,
    slots: int,
    newest: int,
    next_entry: int,
    read_entries: Callable[[int, int], IndexEntries],
    *,
    max_num: int | None = None,
    file: str = "",
) -> npt.NDArray[np.int64]:
    """Return the physical offsets that the index has for a key hash, newest first.

    Args:
        read_entries: reads entries, given the first number and the count.
        key_hash, slots, newest, next_entry, max_num, file: see `follow_chain`.

    Raises:
        CorruptStoreError: as `follow_chain`.
    """
    steps = follow_chain(key_hash, slots, newest, next_entry, max_num=max_num, file=file)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(read_entries(*wanted))
    except StopIteration as end:
        found: npt.NDArray[np.int64] = end.value
        return found


def follow_chain(
    key_hash: int,
    slots: int,
    newest: int,
    next_entry: int,
    *,
    max_num: int | None = None,
    max_gap: int = 4096,
    file: str = "",
) -> Generator[tuple[int, int], IndexEntries, npt.NDArray[np.int64]]:
    """Follow a chain step by step: yield which entries to read, and receive them.

    If a chain's entries lie close together, they are read in growing windows. All entries of a
    window with that hash are taken, as they can only be in this chain. So a key of a million
    records costs a few dozen reads, and a rare key as many small reads as it has entries.

    Args:
        key_hash: see `hashing.index_key_hash`.
        slots: number of slots in the file.
        newest: value of slot `key_hash % slots`; 0 or less means empty.
        next_entry: the header's `next_entry`, read after the slot if a broker is writing the file.
        max_num: maximum number of results, the newest ones.
        max_gap: bytes up to which entries count as close: reading them is cheaper than another
            read.
        file: for error messages.

    Yields:
        The number of the first entry to read, and the count.

    Returns:
        The physical offsets of the entries with that hash, newest first.

    Raises:
        CorruptStoreError: the chain leads to an impossible entry. Search the part of the
            CommitLog that the file covers instead.
    """
    found: list[npt.NDArray[np.int64]] = []
    missing = next_entry if max_num is None else max_num
    last, window = newest, 1
    while last > 0 and missing > 0:
        # The slot is written before the header counts its entry, so it may be one ahead.
        if last > next_entry:
            raise CorruptStoreError(
                f"a chain of an index leads to entry {last} of {next_entry - 1}",
                file=file,
            )
        first = max(1, last - window + 1)
        entries = yield first, last - first + 1
        if len(entries) != last - first + 1:
            raise CorruptStoreError(f"an index ends before its entry {last}", file=file)
        mine = np.flatnonzero(entries["keyHash"] % slots == key_hash % slots)
        if not mine.size or mine[-1] != len(entries) - 1:
            raise CorruptStoreError(
                f"a chain of an index leads to entry {last}, which is in another chain", file=file
            )
        matches = entries[entries["keyHash"] == key_hash]["phyOffset"][::-1][:missing]
        found.append(matches.astype(np.int64))
        missing -= matches.size
        oldest = first + int(mine[0])
        last = int(entries["previous"][mine[0]])
        if last >= oldest:
            raise CorruptStoreError(
                f"a chain of an index leads from entry {oldest} on to entry {last}", file=file
            )
        # An entry of this chain between `last` and `oldest` would have been in the window.
        is_near = (oldest - last) * ENTRY_SIZE <= max_gap
        window = min(2 * window, _MAX_WINDOW) if is_near else 1
    return np.concatenate(found) if found else np.empty(0, np.int64)
