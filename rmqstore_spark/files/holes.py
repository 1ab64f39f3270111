"""Finds what is written of a local file that has its full length from the start.

The rest of such a file is a hole: it reads as zeros and takes no room. Holes are skipped without
reading them.
"""

from __future__ import annotations

import errno
import os
from typing import Final

import numpy as np

from rmqstore_spark.files.durable import explained

_CHUNK: Final = 4 << 20


def written_end(path: str, start: int) -> int | None:
    """Return one past the last nonzero byte of a file, from an offset on; None if all are zeros.

    Raises:
        StoreWriteError: the file could not be read.
    """
    last = None
    with explained(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            at = _next_data(descriptor, start) if start < size else None
            while at is not None and at < size:
                count = min(os.lseek(descriptor, at, os.SEEK_HOLE) - at, _CHUNK)
                data = np.frombuffer(os.pread(descriptor, count, at), np.uint8)
                if not len(data):
                    break
                if data.any():
                    last = at + int(np.flatnonzero(data)[-1]) + 1
                at = _next_data(descriptor, at + len(data))
        finally:
            os.close(descriptor)
    return last


def solid_end(descriptor: int, size: int) -> int | None:
    """Return where a file's only hole begins, which reaches to its end.

    Return None if data follows it, or if the file system cannot say.

    Args:
        descriptor: an open file.
        size: its size, which is returned if it has no hole.
    """
    try:
        end = os.lseek(descriptor, 0, os.SEEK_HOLE)
        return end if end >= size or _next_data(descriptor, end) is None else None
    except OSError:
        return None


def _next_data(descriptor: int, at: int) -> int | None:
    """Return the first byte at or after another that is not in a hole; None if there is none."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
