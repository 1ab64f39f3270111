"""Gives a process the I/O priority idle."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

from rmqstore_spark.errors import OptionError

__all__ = ["use_idle_io"]

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""The number of the system call, which the C library does not wrap."""

_THIS_THREAD: Final = (1, 0)
_IDLE: Final = 3 << 13


def use_idle_io() -> None:
    """Let the disk serve this thread, and those that it starts, only while it has nothing else.

    Raises:
        OptionError: the system cannot do that.
    """
    number = _IOPRIO_SET.get(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or libc.syscall(number, *_THIS_THREAD, _IDLE):
        why = os.strerror(ctypes.get_errno()) if number else f"unknown on {platform.machine()}"
        raise OptionError(
            f"The I/O priority cannot be set ({why}). Leave out --idle-io, and start the process "
            "with `ionice -c 3`, or with IOSchedulingClass=idle in its systemd unit."
        )
