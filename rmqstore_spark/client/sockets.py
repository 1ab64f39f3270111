"""Lists the sockets of this process: Arrow Flight has no other reliable way to end a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

__all__ = ["own_sockets"]

_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def own_sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of this process, which the caller closes."""
    for name in os.listdir(_DESCRIPTORS):
        found = _socket(int(name))
        if found is not None:
            yield found


def _socket(descriptor: int) -> socket.socket | None:
    try:
        # Another thread may close it and reuse its number, so only the copy is examined.
        copy = os.dup(descriptor)
    except OSError:
        return None  # closed meanwhile
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None  # not a socket
