"""Reads of open files: plainly, from the page cache alone, sparing it, or at a limited rate.

A broker serves its producers and consumers from the page cache. A program that reads old segments
beside it fills that cache with pages that nobody needs again, and the broker's pages go. There are
two ways to leave the page cache as it was found:

- `RWF_DONTCACHE` (Linux 6.14, if the file system supports it; ext4, XFS and Btrfs do): the system
  drops the pages that a read brought in, and keeps those that were there before. It still reads
  ahead: where reading stops, one read-ahead window can remain.
- Everywhere else, the pages that were not there before a read are dropped behind it
  (`POSIX_FADV_DONTNEED`). Reading ahead is turned off for the descriptor: what it brings in would
  look at the next read as if it had been there before.

Where neither works, reads are plain, and a warning says so once. Which pages are there is told by
mincore, on a map that is never touched: only to those who may change the file, its owner or a user
with write permission (Linux 5.2 and later; to all others every page seems to be there). Reading
with `RWF_NOWAIT` starts to read the pages ahead (Linux 6.18), and so changes what it asks about;
`cachestat` counts pages, but does not say which they are.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.kernel import pread_spans
from rmqstore_spark.layout.spans import I4, I8, U1

_log = logging.getLogger(__name__)


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

    def may_send(self, descriptor: int, length: int, offset: int) -> bool:
        """Return whether the system may send a range from its file; it then counts as read."""
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

    def may_send(self, descriptor: int, length: int, offset: int) -> bool:
        """Return whether the system may send a range from its file."""
        del descriptor, length, offset
        return True


PLAIN: Final = PlainReads()


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
        raise _as_wait(error) from None
    return done


def _as_wait(error: OSError) -> OSError:
    return BlockingIOError() if error.errno == errno.EOPNOTSUPP else error


def cached_bytes(descriptor: int, length: int, offset: int) -> bytes:
    """Return bytes of an open file.

    Raises:
        BlockingIOError: some are not in the page cache, or not in the file, or the system cannot
            tell.
    """
    if not _RWF_NOWAIT:
        raise BlockingIOError
    out = bytearray(length)
    try:
        done = os.preadv(descriptor, [out], offset, _RWF_NOWAIT)
    except OSError as error:
        raise _as_wait(error) from None
    if done < length:
        raise BlockingIOError
    return bytes(out)


LEAST_RATE: Final = 1 << 20
"""The lowest rate, in bytes per second. With a lower one, requests of clients would time out."""


class PacedReads:
    """Other reads, counted and at a limited rate. Threads can share it, and it serves them in turn.

    The limit is on what is read, whether it comes from the disk or from the page cache. A read
    starts when all reads before it are paid for. In any stretch of time, at most its length times
    the rate is read, and one read more.

    Args:
        reads: the reads themselves.
        rate: bytes per second, at least `LEAST_RATE`; None for no limit.
    """

    def __init__(self, reads: DiskReads, rate: int | None = None) -> None:
        if rate is not None and rate < LEAST_RATE:
            raise ValueError(f"a rate of {rate} bytes per second is too low")
        self._reads = reads
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes that were requested so far."""
        return self._total

    def some(self, descriptor: int, length: int, offset: int) -> bytes:
        """Return bytes at an offset."""
        self._wait(length)
        return self._reads.some(descriptor, length, offset)

    def some_into(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill a buffer from an offset."""
        self._wait(len(out))
        return self._reads.some_into(descriptor, out, offset)

    def spans(
        self,
        descriptor: int,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> int:
        """Read spans into `out`, one after the other."""
        self._wait(int(lengths.sum(dtype=np.int64)))
        return self._reads.spans(descriptor, offsets, lengths, out)

    def may_send(self, descriptor: int, length: int, offset: int) -> bool:
        """Return whether the system may send a range from its file."""
        if not self._reads.may_send(descriptor, length, offset):
            return False
        self._wait(length)
        return True

    def _wait(self, count: int) -> None:
        with self._lock:
            self._total += count
            if self._rate is None:
                return
            start = max(time.monotonic(), self._free_at)
            self._free_at = start + count / self._rate
        pause = start - time.monotonic()
        if pause > 0:
            time.sleep(pause)


PAGE: Final = mmap.PAGESIZE
_FAILED: Final = ctypes.c_void_p(-1).value


def can_tell(descriptor: int) -> bool:
    """Return whether the system tells this process which pages of a file are in the page cache."""
    if os.geteuid() in (0, os.fstat(descriptor).st_uid):
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def resident_pages(descriptor: int, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return for each page whether it is in the page cache.

    Args:
        descriptor: the file; see `can_tell`.
        first: number of the first page.
        count: number of pages, at least 1. Pages past the end of the file are not there.

    Raises:
        OSError: the file cannot be mapped.
    """
    libc = _libc()
    length = count * PAGE
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, first * PAGE)
    if address == _FAILED:
        raise _last_error()
    try:
        found = np.empty(count, np.uint8)
        if libc.mincore(address, length, found.ctypes.data):
            raise _last_error()
    finally:
        libc.munmap(address, length)
    return (found & 1).astype(np.bool_)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = pointer
    libc.mincore.argtypes = (pointer, size, pointer)
    libc.munmap.argtypes = (pointer, size)
    return libc


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

    def may_send(self, descriptor: int, length: int, offset: int) -> bool:
        """Return whether the system may send a range from its file: if the cache has all of it."""
        if self.way(descriptor) is CacheWay.NONE:
            return True
        if length <= 0 or not can_tell(descriptor):
            return False
        first = offset // PAGE
        return bool(resident_pages(descriptor, first, -(-(offset + length) // PAGE) - first).all())

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
