"""Reads that spare the page cache: they leave it as they found it.

A broker serves its producers and consumers from the page cache. A program that reads old segments
beside it fills that cache with pages that nobody needs again, and the broker's pages go. There are
two ways around that:

- `RWF_DONTCACHE` (Linux 6.14, if the file system supports it; ext4, XFS and Btrfs do): the system
  drops the pages that a read brought in, and keeps those that were there before. It still reads
  ahead: where reading stops, one read-ahead window can remain.
- Everywhere else, the pages that were not there before a read are dropped behind it
  (`POSIX_FADV_DONTNEED`). Reading ahead is turned off for the descriptor: what it brings in would
  look at the next read as if it had been there before.

Where neither works, reads are plain, and a warning says so once.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.disk.reads import PLAIN
from rmqstore_spark.files.disk.residence import PAGE, can_tell, resident_pages
from rmqstore_spark.layout.kernel import pread_spans

_log = logging.getLogger(__name__)

_RWF_DONTCACHE: Final = 0x80
_UNSUPPORTED: Final = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV, errno.EPERM, errno.EACCES}
)
_WINDOW: Final = 4 << 20
"""Spans that begin within this many bytes are read before their pages are dropped."""


class CacheWay(Enum):
    """How a read spares the page cache."""

    UNCACHED = "RWF_DONTCACHE"
    DROPPED = "POSIX_FADV_DONTNEED"
    NONE = "none"


class SparingReads:
    """Reads that leave the page cache as they found it. Threads can share it.

    Args:
        ways: the ways to try, in this order.
    """

    def __init__(self, ways: Sequence[CacheWay] = (CacheWay.UNCACHED, CacheWay.DROPPED)) -> None:
        self._ways = tuple(ways)
        self._way_of: dict[tuple[int, int], CacheWay] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._ways,)

    def way(self, descriptor: int) -> CacheWay:
        """Return how reads of a file spare the page cache."""
        status = os.fstat(descriptor)
        # Files of one device and owner behave alike, and there are many.
        key = (status.st_dev, status.st_uid)
        way = self._way_of.get(key)
        if way is None:
            way = next((way for way in self._ways if _works(way, descriptor)), CacheWay.NONE)
            with self._lock:
                is_new = key not in self._way_of
                self._way_of[key] = way
            if is_new and way is CacheWay.NONE:
                _log.warning(
                    "Reads of %s cannot spare the page cache: the file system does not support "
                    "RWF_DONTCACHE, and the system does not tell user %d which pages are in the "
                    "page cache. Run as the user that owns the files.",
                    os.readlink(f"/proc/self/fd/{descriptor}"),
                    os.geteuid(),
                )
        return way

    def some(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return bytes at an offset."""
        if self.way(descriptor) is not CacheWay.UNCACHED:
            with self._dropping(descriptor, offset, offset + length):
                return PLAIN.some(descriptor, length, offset)
        out = bytearray(length)
        del out[os.preadv(descriptor, [out], offset, _RWF_DONTCACHE) :]
        return bytes(out)

    def some_into(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill a buffer from an offset."""
        if self.way(descriptor) is CacheWay.UNCACHED:
            return os.preadv(descriptor, [out], offset, _RWF_DONTCACHE)
        with self._dropping(descriptor, offset, offset + len(out)):
            return PLAIN.some_into(descriptor, out, offset)

    def spans(
        self,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> int:
        """Read spans into `out`, one after the other."""
        way = self.way(descriptor)
        if way is CacheWay.UNCACHED:
            done: int = pread_spans(descriptor, offsets, lengths, out, _RWF_DONTCACHE)
            return done
        if way is CacheWay.NONE or not len(offsets):
            return PLAIN.spans(descriptor, offsets, lengths, out)
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        cuts = np.flatnonzero(np.diff(offsets // _WINDOW)) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(offsets)]):
            first = int(offsets[begin:end].min())
            last = int((offsets[begin:end] + lengths[begin:end]).max())
            part = out[int(ends[begin]) : int(ends[end])]
            with self._dropping(descriptor, first, last):
                got = PLAIN.spans(descriptor, offsets[begin:end], lengths[begin:end], part)
            if got < end - begin:
                return begin + got
        return len(offsets)

    @contextmanager
    def _dropping(self, descriptor: int, begin: int, end: int) -> Iterator[None]:
        """Read something within the context; drop those of its pages that were not there before."""
        if self.way(descriptor) is CacheWay.NONE or end <= begin:
            yield
            return
        first = begin // PAGE
        cold = ~resident_pages(descriptor, first, -(-end // PAGE) - first)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            yield
        finally:
            edges = np.flatnonzero(np.diff(cold, prepend=False, append=False)).reshape(-1, 2)
            for start, stop in (edges + first).tolist():
                os.posix_fadvise(
                    descriptor, start * PAGE, (stop - start) * PAGE, os.POSIX_FADV_DONTNEED
                )


def _works(way: CacheWay, descriptor: int) -> bool:
    if not hasattr(os, "posix_fadvise"):
        return False
    try:
        if way is CacheWay.DROPPED:
            return can_tell(descriptor) and len(resident_pages(descriptor, 0, 1)) == 1
        os.preadv(descriptor, [bytearray(1)], 0, _RWF_DONTCACHE)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
