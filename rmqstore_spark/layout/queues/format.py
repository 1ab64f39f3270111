"""What a format of queues is: entries of one size, each of which names a record of the log.

See docs/format.md, "A ConsumeQueue entry". `consumequeue` is the one format there is. What
reads or writes a queue asks its `QueueFormat` for sizes and columns, a whole batch at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.buffers import BytesLike, records_in
from rmqstore_spark.layout.kernel.reference.entries import VOID_CODE
from rmqstore_spark.layout.spans import I4, I8, U1

if TYPE_CHECKING:
    from rmqstore_spark.layout.record.block import Block

__all__ = ["Entries", "Entry", "EntryColumns", "QueueFormat"]

Entries: TypeAlias = npt.NDArray[np.void]
"""n entries of a format, in its dtype, with at least physicalOffset, size and tagsCode."""

Mask: TypeAlias = npt.NDArray[np.bool_]


class Entry(NamedTuple):
    """A single entry.

    Attributes:
        physical_offset: where its record starts in the log.
        size: bytes of the record.
        is_filler: whether it is padding in front of a queue's first message.
    """

    physical_offset: int
    size: int
    is_filler: bool

    @property
    def is_written(self) -> bool:
        """Whether it was ever written, as a message or as a filler."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def names_record(self) -> bool:
        """Whether it is the entry of a record: of a message, or a void one."""
        return self.physical_offset >= 0 and self.size > 0 and not self.is_filler


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


class QueueFormat(ABC):
    """The format of a queue's files. It has no state, so all queues of a store share one.

    Args:
        dtype: an entry, with at least the fields physicalOffset, size and tagsCode.
        per_file: entries of a file, unless a store is configured otherwise.

    Attributes:
        dtype: the same.
        size: bytes of an entry.
        file_size: bytes of a file, unless a store is configured otherwise.
    """

    def __init__(self, dtype: np.dtype[np.void], per_file: int) -> None:
        self.dtype: Final = dtype
        self.size: Final = dtype.itemsize
        self.file_size: Final = per_file * dtype.itemsize

    # ---- places --------------------------------------------------------------------------------

    def slot(self, at: int) -> int:
        """Return the slot in which a byte of a queue lies: the number of whole slots before it."""
        return at // self.size

    def slot_from(self, at: int) -> int:
        """Return the first slot that begins at or past a byte of a queue."""
        return -(-at // self.size)

    def field_at(self, name: str) -> int:
        """Return the byte of an entry at which a field begins."""
        return int(dict(self.dtype.fields or {})[name][1])

    # ---- entries -------------------------------------------------------------------------------

    def decode(self, data: BytesLike) -> Entries:
        """Return a view of the whole entries in `data`, without a partial one at the end."""
        return records_in(data, self.dtype)

    @abstractmethod
    def split(self, data: BytesLike) -> tuple[EntryColumns, bool]:
        """Return the columns of whole entries, and whether all are messages (`is_message`)."""

    @abstractmethod
    def entry(self, data: bytes) -> Entry:
        """Return the single entry in `data`, which has `size` bytes."""

    def encode(self, offsets: npt.ArrayLike, sizes: npt.ArrayLike, codes: npt.ArrayLike) -> Entries:
        """Return one entry per element.

        Args:
            offsets: int64, where each record starts in the log.
            sizes: int32, the bytes of each record.
            codes: int64, the tagsCodes, see docs/format.md; a scalar applies to all.
        """
        places = np.asarray(offsets, np.int64)
        entries = np.zeros(places.shape, self.dtype)
        entries["physicalOffset"] = places
        entries["size"] = sizes
        entries["tagsCode"] = codes
        return entries

    @abstractmethod
    def packed(self, offset: int, size: int, code: int) -> bytes:
        """Return the bytes of one entry; see `encode`."""

    @abstractmethod
    def of_block(self, block: Block, physical_offset: I8) -> tuple[Entries, I8]:
        """Return the entries of a block's records.

        A format whose entry stands for several records, as in 5.x's batch queue, cannot be one yet:
        dispatch and recovery give each entry the queueOffset of the record in its place.

        Args:
            block: n records.
            physical_offset: n.

        Returns:
            One entry per queued record, grouped by route, in the order of the rows; and where each
            route's entries begin, followed by the total.
        """

    @abstractmethod
    def pick(
        self,
        data: BytesLike,
        codes: I4 | None,
        log: tuple[int, int, int, int],
        limits: tuple[int, int, int, int],
        places: I8,
        sizes: I4,
    ) -> tuple[int, int, bool]:
        """Pick the entries that a consumer gets in one answer; see `kernel.reference.entries`."""

    # ---- what entries are ----------------------------------------------------------------------

    @abstractmethod
    def fillers(self, count: int) -> Entries:
        """Return `count` fillers, which precede a queue's first message."""

    @abstractmethod
    def is_filler(self, entries: Entries) -> Mask:
        """Return which entries are fillers."""

    def is_written(self, entries: Entries) -> Mask:
        """Return which entries were ever written, fillers included."""
        written: Mask = (entries["physicalOffset"] >= 0) & (entries["size"] > 0)
        return written

    def is_message(self, entries: Entries) -> Mask:
        """Return which entries are messages: neither unwritten nor fillers, nor void."""
        return self.is_written(entries) & ~self.is_filler(entries) & ~self.is_void(entries)

    def is_void(self, entries: Entries) -> Mask:
        """Return which entries are void: they have an offset and a record that do not count."""
        void: Mask = entries["tagsCode"] == VOID_CODE
        return void

    # ---- extension units -----------------------------------------------------------------------

    @property
    @abstractmethod
    def unit_head_size(self) -> int:
        """Bytes of the head of an extension unit."""

    @abstractmethod
    def in_units(self, codes: I8) -> Mask:
        """Return which tagsCodes are addresses of extension units, which hold the tagsCodes."""

    @abstractmethod
    def unit_offsets(self, addresses: I8) -> I8:
        """Return the bytes of a queue's extension files at which these units begin."""

    @abstractmethod
    def unit_heads(self, buffer: U1, at: I8) -> tuple[Entries, Mask]:
        """Return the heads of units, of which `buffer` holds at least that, and which are whole.

        Args:
            buffer: bytes of extension files.
            at: n, where each head begins in `buffer`.

        Returns:
            n heads, with at least the fields tagsCode and storeTimestamp; n bools.
        """
