"""Decode and encode ConsumeQueue entries of 20 bytes each, in batches.

    physicalOffset 8 | size 4 | tagsCode 8          big-endian, signed

See docs/format.md, "A ConsumeQueue entry". A lost queue is rebuilt from the CommitLog. Nothing in
a queue is authoritative: a reader checks each entry against the record that it points to.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.buffers import BytesLike, octets, records_in
from rmqstore_spark.layout.spans import I4, I8

__all__ = [
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "FILLER_SIZE",
    "EntryColumns",
    "decode_entries",
    "encode_entries",
    "filler_entries",
    "is_filler",
    "live_mask",
    "split_entries",
    "unpack_entry",
    "written_mask",
]

ENTRY_DTYPE: Final = np.dtype([("physicalOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])
ENTRY_SIZE: Final = ENTRY_DTYPE.itemsize
_ENTRY: Final = struct.Struct(">qiq")

FILLER_SIZE: Final = 2_147_483_647
"""The `size` of a filler entry: padding in the queue's first file before its first message."""

Entries = npt.NDArray[np.void]


def decode_entries(data: BytesLike) -> Entries:
    """Return a view of the whole entries in `data`, without a partial one at the end."""
    return records_in(data, ENTRY_DTYPE)


@dataclass(frozen=True)
class EntryColumns:
    """n entries, one array per field.

    Attributes:
        offsets: n physical offsets.
        sizes: n record sizes, bytes.
        codes: n tagsCodes.
    """

    offsets: I8
    sizes: I4
    codes: I8

    @classmethod
    def joined(cls, parts: Sequence[EntryColumns]) -> EntryColumns:
        """Concatenate the entries of at least one part."""
        return cls(
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.codes for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> EntryColumns:
        return EntryColumns(self.offsets[rows], self.sizes[rows], self.codes[rows])


def split_entries(data: BytesLike) -> tuple[EntryColumns, bool]:
    """Return the columns of whole entries, and whether each is a message (`live_mask`)."""
    raw = octets(data)
    n = len(raw) // ENTRY_SIZE
    columns = EntryColumns(np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int64))
    live = kernel.active.split_entries(raw, columns.offsets, columns.sizes, columns.codes)
    return columns, live


def unpack_entry(data: bytes) -> tuple[int, int, int]:
    """Return physicalOffset, size and tagsCode of the single entry in `data`."""
    return _ENTRY.unpack(data)


def encode_entries(
    physical_offset: npt.ArrayLike, size: npt.ArrayLike, tags_code: npt.ArrayLike
) -> bytes:
    """Encode one entry per element.

    Args:
        physical_offset: int64, where each record starts in the log.
        size: int32, the bytes of each record.
        tags_code: int64, see docs/format.md; a scalar applies to all.
    """
    offsets = np.asarray(physical_offset, np.int64)
    entries = np.empty(offsets.shape, ENTRY_DTYPE)
    entries["physicalOffset"] = offsets
    entries["size"] = size
    entries["tagsCode"] = tags_code
    return entries.tobytes()


def filler_entries(count: int) -> bytes:
    """Return the bytes of `count` fillers, which precede a queue's first message."""
    return encode_entries(np.zeros(count, np.int64), FILLER_SIZE, 0)


def is_filler(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return which entries are fillers: (0, 2147483647, 0)."""
    filler: npt.NDArray[np.bool_] = (
        (entries["size"] == FILLER_SIZE)
        & (entries["physicalOffset"] == 0)
        & (entries["tagsCode"] == 0)
    )
    return filler


def written_mask(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return which entries were ever written, fillers included."""
    written: npt.NDArray[np.bool_] = (entries["physicalOffset"] >= 0) & (entries["size"] > 0)
    return written


def live_mask(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return which entries are messages: neither unwritten nor fillers."""
    return written_mask(entries) & ~is_filler(entries)
