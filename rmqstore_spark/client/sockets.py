"""The sockets of this process: Arrow Flight gives no other way to end a connection for sure."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

__all__ = ["own_sockets"]

_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def own_sockets() -> Iterator[socket.socket]:
    """All sockets of this process, each as a descriptor of its own, which the caller closes."""
    for name in os.listdir(_DESCRIPTORS):
        found = _socket(int(name))
        if found is not None:
            yield found


def _socket(descriptor: int) -> socket.socket | None:
    try:
        # Another thread may close it and open something else under its number: what is looked at
        # is the copy.
        copy = os.dup(descriptor)
    except OSError:
        return None  # closed by now
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None  # no socket
