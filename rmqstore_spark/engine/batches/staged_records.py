"""Staged records with their index: the queues and keys of each; see `stage`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.spans import I4, I8, U1

PORTION_BYTES: Final = 8 << 20
"""The most bytes of a portion, unless it is a single record."""

PORTION_ROWS: Final = 1 << 16
"""The most records of a portion."""

ROW_DTYPE: Final = np.dtype([("size", "i4"), ("route", "i4"), ("tagsCode", "i8")])
"""`route` is a number in the stage's table of routes; ~number if the record is in no queue."""

KEY_DTYPE: Final = np.dtype([("hash", "i4"), ("row", "i4")])
"""`row` is the number of the record in its block, or in its portion."""


@dataclass(frozen=True)
class StagedBlock:
    """n records as they are staged.

    Attributes:
        records: uint8, contiguous records.
        rows: n of `ROW_DTYPE`.
        keys: the index keys, of `KEY_DTYPE`; ascending by row.
    """

    records: U1
    rows: npt.NDArray[np.void]
    keys: npt.NDArray[np.void]

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the records."""
        return isal_zlib.crc32(self.records)

    def pieces(self) -> Iterator[StagedBlock]:
        """Yield the records in parts, each of at most the size of a portion."""
        if len(self.records) <= PORTION_BYTES and len(self.rows) <= PORTION_ROWS:
            yield self
            return
        ends = np.cumsum(self.rows["size"], dtype=np.int64)
        key_rows = self.keys["row"].copy()
        first, at = 0, 0
        while first < len(self.rows):
            last = int(np.searchsorted(ends, at + PORTION_BYTES, side="right"))
            last = max(first + 1, min(last, first + PORTION_ROWS))
            end = int(ends[last - 1])
            key_first, key_last = np.searchsorted(key_rows, (first, last)).tolist()
            keys = self.keys[key_first:key_last].copy()
            keys["row"] -= first
            yield StagedBlock(self.records[at:end], self.rows[first:last], keys)
            first, at = last, end


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

    @classmethod
    def of(cls, table: npt.NDArray[np.void]) -> Rows:
        """Return the columns of n rows of `ROW_DTYPE`."""
        routes = table["route"]
        queued = routes >= 0
        route_of = np.where(queued, routes, ~routes)
        return cls(table["size"].copy(), route_of, queued, table["tagsCode"].copy())

    @cached_property
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

    @classmethod
    def of(cls, table: npt.NDArray[np.void]) -> Keys:
        """Return the columns of keys of `KEY_DTYPE`."""
        return cls(table["hash"].copy(), table["row"].copy())


class Portion(Protocol):
    """Records of a commit that are read, stamped and written together."""

    @property
    def size(self) -> int:
        """Bytes of the records."""
        ...

    @property
    def count(self) -> int:
        """Number of the records."""
        ...

    def read_rows(self, files: HandleCache[int], /) -> Rows:
        """Return the sizes, queues and tags codes of the records.

        Args:
            files: open files that are read more than once.

        Raises:
            RefusedError: a file no longer holds what was written into it.
        """
        ...

    def read_records(self, buffer: U1, files: HandleCache[int], /) -> U1:
        """Return the bytes of the records. The caller may stamp them.

        Args:
            buffer: takes them if they are not in memory; long enough.
            files: open files that are read more than once.

        Raises:
            RefusedError: a file no longer holds what was written into it.
        """
        ...

    def read_keys(self, files: HandleCache[int], /) -> Keys:
        """Return the index keys of the records; none if the store keeps no index.

        Args:
            files: open files that are read more than once.

        Raises:
            RefusedError: a file no longer holds what was written into it.
        """
        ...
