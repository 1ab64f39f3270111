"""The ConsumeQueue: entries of 20 bytes, which can point at extension units.

    entry    physicalOffset 8 | size 4 | tagsCode 8
    unit     size 2 | tagsCode 8 | storeTimestamp 8 | bitMapSize 2 | bit map      big-endian, signed

A unit has no fixed length. Its entry holds its address in place of a tagsCode, so a batch of units
is read at the offsets that the entries give, never by walking the file. A size of -1 closes a file.
See docs/format.md, "A ConsumeQueue entry"; upstream `ConsumeQueueExt`, which calls its content "not
important": the record itself can replace a lost unit. Nothing in a queue is authoritative: a reader
checks each entry against the record that it points to, and a lost queue is rebuilt from the log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.buffers import BytesLike, octets, values_at
from rmqstore_spark.layout.kernel.reference.entries import ENTRY_DTYPE, FILLER_SIZE, LAST_ADDRESS
from rmqstore_spark.layout.queues.format import Entries, Entry, EntryColumns, Mask, QueueFormat
from rmqstore_spark.layout.spans import I4, I8, U1

if TYPE_CHECKING:
    from rmqstore_spark.layout.record.block import Block


UNIT_HEAD_DTYPE: Final = np.dtype(
    [("size", ">i2"), ("tagsCode", ">i8"), ("storeTimestamp", ">i8"), ("bitMapSize", ">i2")]
)
_ADDRESS_BASE: Final = np.int64(-(2**63))


_ENTRY: Final = struct.Struct(">qiq")
_FILLER: Final = (0, FILLER_SIZE, 0)
_ENTRIES_OF_A_FILE: Final = 300_000


class _ConsumeQueue(QueueFormat):
    """See the head of this file. Upstream: ConsumeQueue, ConsumeQueueExt."""

    def __init__(self) -> None:
        super().__init__(ENTRY_DTYPE, _ENTRIES_OF_A_FILE)

    def split(self, data: BytesLike) -> tuple[EntryColumns, bool]:
        raw = octets(data)
        n = len(raw) // self.size
        columns = EntryColumns(np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int64))
        live = kernel.active.split_entries(raw, columns.offsets, columns.sizes, columns.codes)
        return columns, live

    def entry(self, data: bytes) -> Entry:
        fields = _ENTRY.unpack(data)
        return Entry(fields[0], fields[1], fields == _FILLER)

    def packed(self, offset: int, size: int, code: int) -> bytes:
        return _ENTRY.pack(offset, size, code)

    def of_block(self, block: Block, physical_offset: I8) -> tuple[Entries, I8]:
        queued = block.queued.view(np.uint8)
        entries = np.empty(self.size * int(np.count_nonzero(queued)), np.uint8)
        bounds = np.empty(len(block.routes) + 1, np.int64)
        kernel.active.queue_entries(
            block.route_of, queued, physical_offset, block.sizes, block.tags_code, entries, bounds
        )
        return entries.view(self.dtype), bounds

    def pick(
        self,
        data: BytesLike,
        codes: I4 | None,
        log: tuple[int, int, int, int],
        limits: tuple[int, int, int, int],
        places: I8,
        sizes: I4,
    ) -> tuple[int, int, bool]:
        picked: tuple[int, int, bool] = kernel.active.pick_entries(
            octets(data), codes, log, limits, places, sizes
        )
        return picked

    def fillers(self, count: int) -> Entries:
        return self.encode(np.zeros(count, np.int64), FILLER_SIZE, 0)

    def is_filler(self, entries: Entries) -> Mask:
        filler: Mask = (
            (entries["size"] == FILLER_SIZE)
            & (entries["physicalOffset"] == 0)
            & (entries["tagsCode"] == 0)
        )
        return filler

    @property
    def unit_head_size(self) -> int:
        return UNIT_HEAD_DTYPE.itemsize

    def in_units(self, codes: I8) -> Mask:
        return codes <= LAST_ADDRESS

    def unit_offsets(self, addresses: I8) -> I8:
        return addresses ^ _ADDRESS_BASE

    def unit_heads(self, buffer: U1, at: I8) -> tuple[Entries, Mask]:
        heads = values_at(buffer, UNIT_HEAD_DTYPE, at)
        return heads, heads["size"] == self.unit_head_size + heads["bitMapSize"].astype(np.int64)


CONSUME_QUEUE: Final[QueueFormat] = _ConsumeQueue()
"""The format of all queues of a 4.9 store, and of 5.x's queues of type SimpleCQ."""
