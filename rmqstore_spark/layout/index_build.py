"""Putting keys into an IndexFile, a batch at a time, with the content of one-by-one insertion.

Upstream `IndexFile.putKey`. The arrays may be views of a file's bytes; nothing here is written to
disk. The order of writes that makes a crash harmless is the writer's business.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from .buffers import BytesLike, octets
from .index import (
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

__all__ = ["IndexFile"]

_MAX_TIME_DIFF: Final = 2**31 - 1


class IndexFile:
    """One index file in memory.

    Args:
        header: as it stands.
        slots: int32, big-endian, one a slot; changed in place.
        entries: all entries that there is room for, entry 0 included; changed in place.
    """

    def __init__(self, header: IndexHeader, slots: Slots, entries: IndexEntries) -> None:
        self.header = header
        self.slots = slots
        self.entries = entries

    @classmethod
    def create(cls, slots: int, entries: int, after: IndexHeader | None = None) -> IndexFile:
        """An empty file.

        Args:
            slots: `maxHashSlotNum`.
            entries: `maxIndexNum`; there is room for one key less.
            after: the header of the full file that this one follows.
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
        """The file whose bytes these are: a view of `data`, or of a copy if that is read-only.

        Raises:
            CorruptStoreError: so many slots do not fit the file's length.
        """
        raw = octets(data)
        if not raw.flags.writeable:
            raw = raw.copy()
        header = IndexHeader.decode(raw, file=file)
        geometry(raw.size, slots, file=file)
        return cls(header, decode_slots(raw, slots), decode_entries(raw[slot_position(slots) :]))

    def encode(self) -> bytes:
        """The whole file's bytes."""
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
        """Puts keys in, in their order, until the file is full.

        Args:
            key_hash: as `hashing.index_key_hash` gives it, one a key.
            phy_offset: of the key's record.
            store_timestamp: of the key's record, milliseconds.

        Returns:
            How many keys went in; the others belong into the next file.
        """
        start = self.header.next_entry
        count = min(len(key_hash), len(self.entries) - start)
        if count <= 0:
            return 0
        key_hash, phy_offset = key_hash[:count], phy_offset[:count]
        store_timestamp = store_timestamp[:count]
        numbers = np.arange(start, start + count)
        previous, fresh_slots = self._link(key_hash, numbers)

        rows = self.entries[start : start + count]
        rows["keyHash"] = key_hash
        rows["phyOffset"] = phy_offset
        rows["timeDiff"] = self._time_diff(store_timestamp)
        rows["previous"] = previous
        begins = start == 1
        self.header = replace(
            self.header,
            begin_timestamp=int(store_timestamp[0]) if begins else self.header.begin_timestamp,
            begin_phy_offset=int(phy_offset[0]) if begins else self.header.begin_phy_offset,
            end_timestamp=int(store_timestamp[-1]),
            end_phy_offset=int(phy_offset[-1]),
            hash_slot_count=self.header.hash_slot_count + fresh_slots,
            index_count=start + count,
        )
        return count

    def _link(
        self, key_hash: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Hangs new entries into their chains: slots are set, `previous` is returned.

        Returns:
            previous: for each entry.
            fresh: how many slots were not in use before.
        """
        slot = key_hash % len(self.slots)
        by_slot = np.argsort(slot, kind="stable")
        sorted_slot, sorted_number = slot[by_slot], numbers[by_slot]
        opens = np.ones(len(slot), np.bool_)
        opens[1:] = sorted_slot[1:] != sorted_slot[:-1]
        closes = np.roll(opens, -1)

        held = self.slots[sorted_slot[opens]].astype(np.int64)
        # a slot that leads past the newest entry is a crash's leftover, and counts as unused
        held[(held < 0) | (held >= sorted_number[opens])] = 0
        chained = np.empty_like(sorted_number)
        chained[1:] = sorted_number[:-1]
        chained[opens] = held
        self.slots[sorted_slot[closes]] = sorted_number[closes]

        previous = np.empty_like(chained)
        previous[by_slot] = chained
        return previous, int(np.count_nonzero(held == 0))

    def _time_diff(self, store_timestamp: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Whole seconds since the file's begin, as the header stands at each key."""
        begin = np.full(len(store_timestamp), self.header.begin_timestamp, np.int64)
        if self.header.next_entry == 1:
            # the first key is measured from the file before, and sets the begin for the others
            begin[1:] = store_timestamp[0]
        seconds = np.clip((store_timestamp - begin) // 1000, 0, _MAX_TIME_DIFF)
        seconds[begin <= 0] = 0
        return seconds
