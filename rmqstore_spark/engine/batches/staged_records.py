"""The index of a stage: where its records lie, and their queues and keys; see `stage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.layout.spans import I4, I8

__all__ = ["KEY_DTYPE", "ROW_DTYPE", "Keys", "Portion", "Rows", "StagedRange"]

ROW_DTYPE: Final = np.dtype([("size", "i4"), ("route", "i4"), ("tagsCode", "i8")])
"""`route` is a number in the stage's table of routes; ~number if the record is in no queue."""

KEY_DTYPE: Final = np.dtype([("hash", "i4"), ("row", "i4")])
"""`row` is the number of the record in its portion."""


@dataclass(frozen=True)
class StagedRange:
    """A range of bytes in a file.

    Attributes:
        at, size: its position, and the number of bytes.
        checksum: CRC-32 of the bytes, which is checked when they are read back.
    """

    at: int
    size: int = 0
    checksum: int = 0

    def grown(self, size: int, checksum: int) -> StagedRange:
        """Return this range with `size` more bytes at its end, whose CRC-32 is known."""
        joined = isal_zlib.crc32_combine(self.checksum, checksum, size)
        return StagedRange(self.at, self.size + size, joined)


@dataclass(frozen=True)
class Portion:
    """A part of a stage that is held in memory at once: records, their rows and their keys.

    Attributes:
        records, rows, keys: its ranges in the stage's files.
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
        """Number of its records."""
        return self.rows.size // ROW_DTYPE.itemsize


@dataclass(frozen=True)
class Rows:
    """n records of a portion, without their bytes.

    Attributes:
        sizes: n, bytes of each.
        route_of: n, numbers in the stage's table of routes.
        queued: n, whether the record is in its queue.
        tags_code: n, tags codes of the queue entries.
    """

    sizes: I4
    route_of: I4
    queued: npt.NDArray[np.bool_]
    tags_code: I8

    @property
    def starts(self) -> I8:
        """Where each record starts in the portion."""
        ends = np.cumsum(self.sizes, dtype=np.int64)
        return ends - self.sizes


class Keys(NamedTuple):
    """The index keys of a portion's records, as `block.index_hashes` returns them.

    Attributes:
        hashes: hash of each key.
        rows: for each key, its record's number in the portion; ascending.
    """

    hashes: I4
    rows: I4
