"""Finds the pages of a file that are in the page cache: mincore on a map that is never touched.

The system tells this only to those who may change the file: its owner, or a user with write
permission (Linux 5.2 and later; to all others every page seems to be there).

`RWF_NOWAIT` was tried instead, which needs no permission: on Linux 6.18 such a read starts to read
the pages ahead, and so changes what it asks about. `cachestat` counts pages, but does not say which
they are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
