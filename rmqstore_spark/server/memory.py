"""The memory of a store process: bounded while it works, given back when it rests.

The C library keeps what was freed, and so does Arrow's own allocator, for each thread. After a
burst a process would hold hundreds of megabytes that it does not use.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

__all__ = ["given_back", "use_little"]

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_MAPPED: Final = 8 << 20
"""What is larger goes back when it is freed; what a sink sends is smaller, and is used again."""
_KEPT: Final = 64 << 20
_LOOK_SECONDS: Final = 1.0


def use_little() -> None:
    """Let all threads share two heaps, and Arrow use them too, where the C library is glibc."""
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
    """Give unused memory back to the system whenever no call is at work any more.

    Args:
        at_work: tells how many calls are.
        ended: tells how many there were.
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
    """The C library, if it has what glibc has."""
    with suppress(OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
            return library
    return None
