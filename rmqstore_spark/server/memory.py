"""Limits the memory of a store process while it works, and gives it back when it is idle.

The C library and Arrow's own allocator keep freed memory for each thread. After a burst, the
process would hold hundreds of megabytes that it does not use.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_MAPPED: Final = 8 << 20
"""Larger allocations return to the system when freed. What a sink sends is smaller, and reused."""
_KEPT: Final = 64 << 20
_LOOK_SECONDS: Final = 1.0


def use_little() -> None:
    """Make all threads share two heaps, and Arrow use them too, if the C library is glibc."""
    c_library = _c_library()
    if c_library is None:
        return
    for parameter, value in (
        (_M_ARENA_MAX, _ARENAS),
        (_M_MMAP_THRESHOLD, _MAPPED),
        (_M_TRIM_THRESHOLD, _KEPT),
    ):
        c_library.mallopt(parameter, value)
    pa.set_memory_pool(pa.system_memory_pool())


@contextmanager
def given_back(at_work: Callable[[], int], ended: Callable[[], int]) -> Iterator[None]:
    """Give unused memory back to the system whenever all calls are idle or have ended.

    Args:
        at_work: returns the number of calls that do not wait for their client.
        ended: returns the number of calls that have ended.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_give_back, args=(at_work, ended, stop), name="rmqstore-memory", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _give_back(at_work: Callable[[], int], ended: Callable[[], int], stop: threading.Event) -> None:
    c_library = _c_library()
    done, has_worked = ended(), False
    while c_library is not None and not stop.wait(_LOOK_SECONDS):
        is_working = at_work() > 0
        has_worked = has_worked or is_working or ended() != done
        if has_worked and not is_working:
            done, has_worked = ended(), False
            c_library.malloc_trim(0)


def _c_library() -> Any:
    """Return the C library if it has glibc's functions, else None."""
    with suppress(OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
            return library
    return None
