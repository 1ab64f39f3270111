"""What is known of staged records, and where it lies: see `stage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.layout.spans import I4, I8

__all__ = ["KEY_DTYPE", "ROW_DTYPE", "Keys", "Portion", "Rows", "StagedRange"]

ROW_DTYPE: Final = np.dtype([("size", "i4"), ("route", "i4"), ("tagsCode", "i8")])
"""`route` is a number of the stage's own table; ~number where the record stands in no queue."""

KEY_DTYPE: Final = np.dtype([("hash", "i4"), ("row", "i4")])
"""`row` is a number of the portion's own."""


@dataclass(frozen=True)
class StagedRange:
    """Bytes of a file.

    Attributes:
        at, size: where they lie, and how many.
        checksum: CRC-32 of them: what is read back later is what was written.
    """

    at: int
    size: int = 0
    checksum: int = 0

    def grown(self, size: int, checksum: int) -> StagedRange:
        """This extent with so many bytes more behind it, of which the CRC-32 is known."""
        joined = isal_zlib.crc32_combine(self.checksum, checksum, size)
        return StagedRange(self.at, self.size + size, joined)


@dataclass(frozen=True)
class Portion:
    """A part of a stage that is held in memory at once: records, and what is known of them.

    Attributes:
        records, rows, keys: its parts of the stage's files.
    """

    records: StagedRange
    rows: StagedRange
    keys: StagedRange

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return self.records.size

    @property
    def count(self) -> int:
        """Its records."""
        return self.rows.size // ROW_DTYPE.itemsize


@dataclass(frozen=True)
class Rows:
    """n records of a portion.

    Attributes:
        sizes: n, bytes of each.
        route_of: n, numbers of routes in the stage's table.
        queued: n, whether the record stands in its queue.
        tags_code: n, of its queue entry.
    """

    sizes: I4
    route_of: I4
    queued: npt.NDArray[np.bool_]
    tags_code: I8

    @property
    def starts(self) -> I8:
        """Where each record begins in the portion."""
        ends = np.cumsum(self.sizes, dtype=np.int64)
        return ends - self.sizes


class Keys(NamedTuple):
    """What records of a portion are indexed under, as `block.index_hashes` gives it.

    Attributes:
        hashes: of each key.
        rows: of each key, its record's number in the portion; ascending.
    """

    hashes: I4
    rows: I4
