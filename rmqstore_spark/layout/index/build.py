"""Insert keys into an IndexFile in batches, with the same result as inserting them one by one.

Upstream `IndexFile.putKey`. The arrays may be views of a file's bytes; nothing here writes to disk.
The writer is responsible for an order of writes that survives a crash.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.buffers import BytesLike, octets
from rmqstore_spark.layout.index.format import (
    ENTRY_DTYPE,
    SLOT_DTYPE,
    IndexEntries,
    IndexHeader,
    Slots,
    decode_entries,
    decode_slots,
    geometry,
    slot_position,
)


def link_entries(
    header: IndexHeader,
    slots: Slots,
    room: int,
    key_hash: npt.NDArray[np.int32],
    phy_offset: npt.NDArray[np.int64],
    store_timestamp: npt.NDArray[np.int64],
) -> tuple[IndexEntries, IndexHeader]:
    """Insert keys into a file, given only its header and slots, until it is full.

    Args:
        header: the current header.
        slots: int32, big-endian, one per slot; changed in place.
        room: the file's capacity in entries, entry 0 included.
        key_hash: n, see `hashing.index_key_hash`.
        phy_offset: n, physical offsets of the keys' records.
        store_timestamp: n, storeTimestamps of the keys' records, milliseconds.

    Returns:
        The new entries, numbered from `header.next_entry`, as many as fit; the remaining keys
        belong into the next file. And the file's new header.
    """
    start = header.next_entry
    count = max(min(len(key_hash), room - start), 0)
    entries = np.empty(count, ENTRY_DTYPE)
    if not count:
        return entries, header
    times = np.ascontiguousarray(store_timestamp[:count], np.int64)
    offsets = np.ascontiguousarray(phy_offset[:count], np.int64)
    fresh = kernel.active.link_keys(
        slots,
        start,
        np.ascontiguousarray(key_hash[:count], np.int32),
        offsets,
        times,
        header.begin_timestamp,
        entries.view(np.uint8),
    )
    begins = start == 1
    return entries, IndexHeader(
        begin_timestamp=int(times[0]) if begins else header.begin_timestamp,
        begin_phy_offset=int(offsets[0]) if begins else header.begin_phy_offset,
        end_timestamp=int(times[-1]),
        end_phy_offset=int(offsets[-1]),
        hash_slot_count=header.hash_slot_count + fresh,
        index_count=start + count,
    )


class IndexFile:
    """One index file in memory.

    Args:
        header: the current header.
        slots: int32, big-endian, one per slot; changed in place.
        entries: all entries up to the file's capacity, entry 0 included; changed in place.
    """

    def __init__(self, header: IndexHeader, slots: Slots, entries: IndexEntries) -> None:
        self.header = header
        self.slots = slots
        self.entries = entries

    @classmethod
    def create(cls, slots: int, entries: int, after: IndexHeader | None = None) -> IndexFile:
        """Create an empty file.

        Args:
            slots: `maxHashSlotNum`.
            entries: `maxIndexNum`; the file holds one key less.
            after: the header of the full file before this one.
        """
        header = IndexHeader()
        if after is not None:
            header = IndexHeader(
                begin_timestamp=after.end_timestamp,
                end_timestamp=after.end_timestamp,
                begin_phy_offset=after.end_phy_offset,
                end_phy_offset=after.end_phy_offset,
            )
        return cls(header, np.zeros(slots, SLOT_DTYPE), np.zeros(entries, ENTRY_DTYPE))

    @classmethod
    def decode(cls, data: BytesLike, slots: int, *, file: str = "") -> IndexFile:
        """Decode a file: a view of `data`, or of a copy if `data` is read-only.

        Raises:
            CorruptStoreError: the number of slots does not fit the file's length.
        """
        raw = octets(data)
        if not raw.flags.writeable:
            raw = raw.copy()
        header = IndexHeader.decode(raw, file=file)
        geometry(raw.size, slots, file=file)
        return cls(header, decode_slots(raw, slots), decode_entries(raw[slot_position(slots) :]))

    def encode(self) -> bytes:
        """Return the whole file's bytes."""
        return self.header.encode() + self.slots.tobytes() + self.entries.tobytes()

    @property
    def is_full(self) -> bool:
        """Whether the next key belongs into a new file."""
        return self.header.next_entry >= len(self.entries)

    def insert(
        self,
        key_hash: npt.NDArray[np.int32],
        phy_offset: npt.NDArray[np.int64],
        store_timestamp: npt.NDArray[np.int64],
    ) -> int:
        """Insert keys, in their order, until the file is full.

        Args:
            key_hash: one per key, see `hashing.index_key_hash`.
            phy_offset: physical offset of the key's record.
            store_timestamp: storeTimestamp of the key's record, milliseconds.

        Returns:
            How many keys were inserted; the others belong into the next file.
        """
        room = len(self.entries)
        start = self.header.next_entry
        entries, self.header = link_entries(
            self.header, self.slots, room, key_hash, phy_offset, store_timestamp
        )
        self.entries[start : start + len(entries)] = entries
        return len(entries)
