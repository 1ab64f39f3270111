"""Ports for servers that must know theirs before they listen."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final

__all__ = ["free_port"]

_PORTS: Final = range(12_000, 30_000)
"""Below those that Linux gives to outgoing connections: none of them takes a port meanwhile."""

_DRAWN: Final = random.SystemRandom()
"""Not the seeded generator: the processes that share the tests have one seed, and would collide."""


def free_port(around: Iterable[int] = ()) -> int:
    """Return a port on which nothing listens.

    Args:
        around: distances from it at which ports must be free too.
    """
    while True:
        port = _DRAWN.choice(_PORTS)
        with ExitStack() as held, suppress(OSError):
            for distance in (0, *around):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port + distance))
            return port
