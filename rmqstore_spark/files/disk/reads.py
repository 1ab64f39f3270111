"""Reads of open files, as any program does them."""

from __future__ import annotations

import os
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.kernel import pread_spans


class DiskReads(Protocol):
    """Reads of open files, by descriptor. Threads can share it.

    Every method raises OSError as `os.pread` does.
    """

    def some(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return bytes at an offset; fewer than `length` at the end of the file, or anywhere."""
        ...

    def some_into(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill a buffer from an offset, and return the bytes read; they can be fewer, as above."""
        ...

    def spans(
        self,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> int:
        """Read spans into `out`, one after the other; see `pread_spans`.

        Returns:
            The number of spans read in full; fewer than requested if the file ends early.
        """
        ...


class PlainReads:
    """Reads that leave the page cache to the system."""

    def some(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return bytes at an offset."""
        return os.pread(descriptor, length, offset)

    def some_into(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill a buffer from an offset."""
        return os.preadv(descriptor, [out], offset)

    def spans(
        self,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> int:
        """Read spans into `out`, one after the other."""
        done: int = pread_spans(descriptor, offsets, lengths, out)
        return done


PLAIN: Final = PlainReads()
