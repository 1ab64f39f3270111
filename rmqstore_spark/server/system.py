"""What a store process takes of the machine: memory, open files, turns of the processor and disk.

The C library and Arrow's own allocator keep freed memory for each thread. After a burst, the
process would hold hundreds of megabytes that it does not use.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

from rmqstore_spark.errors import OptionError

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_MAPPED: Final = 8 << 20
"""Larger allocations return to the system when freed. What a sink sends is smaller, and reused."""
_KEPT: Final = 64 << 20
_LOOK_SECONDS: Final = 1.0
_FILES: Final = 1 << 16
_SWITCH_SECONDS: Final = 0.001
"""By default, each of a hundred other threads may run for 5 ms before a put gets its turn."""


def prepare() -> None:
    """Prepare the process, before it has threads, for many clients and little memory."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    allow_many_files()
    _share_heaps()


def _share_heaps() -> None:
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
def memory_given_back(at_work: Callable[[], int], ended: Callable[[], int]) -> Iterator[None]:
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


_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""The number of the system call, which the C library does not wrap."""

_THREAD: Final = 1
_IDLE: Final = 3 << 13


def use_idle_io() -> None:
    """Let the disk serve this process only while it has nothing else to do.

    This sets the priority of all threads that there are; threads inherit it from their starters.

    Raises:
        OptionError: the system cannot do that.
    """
    number = _IOPRIO_SET.get(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    threads = map(int, os.listdir("/proc/self/task"))
    if number is None or any(libc.syscall(number, _THREAD, each, _IDLE) for each in threads):
        why = os.strerror(ctypes.get_errno()) if number else f"unknown on {platform.machine()}"
        raise OptionError(
            f"The I/O priority cannot be set ({why}). Leave out --idle-io, and start the process "
            "with `ionice -c 3`, or with IOSchedulingClass=idle in its systemd unit."
        )


def allow_many_files() -> None:
    """Raise the limit of open files, as far as the process may.

    Each connection uses one, even without an account, and the usual 1,024 are soon exhausted.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if most == resource.RLIM_INFINITY else min(_FILES, most)
    with suppress(OSError, ValueError):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
