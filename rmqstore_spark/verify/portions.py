"""Many records are read a portion at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.spans import I8

__all__ = ["portions"]

_ROWS: Final = 4096
_BYTES: Final = 16 << 20


def portions(rows: I8, sizes: npt.NDArray[np.int32]) -> Iterator[I8]:
    """Cut rows into pieces of at most so many rows, and about so many bytes.

    Args:
        rows: numbers of records.
        sizes: of all records, bytes.
    """
    total = np.cumsum(sizes[rows], dtype=np.int64)
    first = 0
    while first < len(rows):
        before = int(total[first - 1]) if first else 0
        last = int(np.searchsorted(total, before + _BYTES, side="right"))
        last = min(max(last, first + 1), first + _ROWS)
        yield rows[first:last]
        first = last
