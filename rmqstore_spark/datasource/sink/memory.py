"""Keep the memory that a task has freed for what it allocates next.

A task allocates the same few large blocks again and again: Spark's batch, and the records made of
it. The C library returns blocks of that size to the system, and takes new pages for the next. New
pages cost several times what copying bytes into them does, and more on a virtual machine that has
to get them from its host.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_KEPT: Final = 128 << 20
"""Most bytes at the end of the heap that stay when they are free: a few of Spark's batches, and the
records that are on their way."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a limit, from now on.

    Only the GNU C library can be told so; with another, nothing changes.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    # All blocks are parts of one heap, and none a mapping that goes when the block is freed.
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
