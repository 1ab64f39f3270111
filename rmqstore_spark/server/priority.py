"""Gives a process the I/O priority idle."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

from rmqstore_spark.errors import OptionError

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
