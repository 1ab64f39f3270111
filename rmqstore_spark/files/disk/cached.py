"""Reads of what is in the page cache: they never wait for the disk.

The thread that serves all sockets uses them. `RWF_NOWAIT` needs Linux and a file system that
supports it (ext4, XFS and Btrfs do). Where it is missing, nothing can be read in this way.
"""

from __future__ import annotations

import errno
import os
from typing import Final

import numpy as np

from rmqstore_spark.layout.kernel import pread_spans
from rmqstore_spark.layout.spans import I4, I8, U1

_RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def cached_spans(descriptor: int, offsets: I8, lengths: I4, out: U1) -> int:
    """Read spans of an open file into `out`, one after the other; see `pread_spans`.

    Raises:
        BlockingIOError: some are not in the page cache, or the system cannot tell.
    """
    if not _RWF_NOWAIT:
        raise BlockingIOError
    try:
        done: int = pread_spans(descriptor, offsets, lengths, out, _RWF_NOWAIT)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise BlockingIOError from None
        raise
    return done


def cached_bytes(descriptor: int, length: int, offset: int) -> bytes:
    """Return bytes of an open file.

    Raises:
        BlockingIOError: some are not in the page cache, or not in the file, or the system cannot
            tell.
    """
    out = np.empty(length, np.uint8)
    if not cached_spans(descriptor, np.array([offset]), np.array([length], np.int32), out):
        raise BlockingIOError
    return out.tobytes()
