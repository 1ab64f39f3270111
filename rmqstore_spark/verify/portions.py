"""Cuts records into portions, to limit the memory of a read."""

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
    """Cut rows into portions of at most 4096 rows and about 16 MiB.

    Args:
        rows: numbers of records.
        sizes: sizes of all records, bytes.
    """
    total = np.cumsum(sizes[rows], dtype=np.int64)
    first = 0
    while first < len(rows):
        before = int(total[first - 1]) if first else 0
        last = int(np.searchsorted(total, before + _BYTES, side="right"))
        last = min(max(last, first + 1), first + _ROWS)
        yield rows[first:last]
        first = last
