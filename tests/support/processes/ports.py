"""Ports for servers that must know theirs before they listen."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final

__all__ = ["free_port"]

_PORTS: Final = range(12_000, 30_000)
"""Below those that Linux gives to outgoing connections: none of them takes a port meanwhile."""

_BLOCK: Final = 100
_VIP: Final = -2
_HELD: Final = 3
"""Blocks: the ports of the oldest were given out long ago, so their servers listen by now."""

_DRAWN: Final = random.SystemRandom()
"""Not the seeded generator: the processes that share the tests have one seed, and would collide."""


class _Blocks:
    """Blocks of ports that no other process of tests on this machine takes meanwhile."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._held: list[int] = []
        self._left = range(0)

    def next(self, width: int) -> int:
        """Return the first of some ports, each of which is given out once."""
        if len(self._left) < width:
            self._left = self._claimed()
        first, self._left = self._left[0], self._left[width:]
        return first

    def _claimed(self) -> range:
        folder = os.path.join(tempfile.gettempdir(), f"rmqstore-tests-ports-{os.getuid()}")
        os.makedirs(folder, exist_ok=True)
        while True:
            begin = _DRAWN.choice(_PORTS[::_BLOCK])
            descriptor = os.open(os.path.join(folder, str(begin)), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._held.append(descriptor)
            if len(self._held) > _HELD:
                os.close(self._held.pop(0))
            return range(begin, begin + _BLOCK)


_blocks = _Blocks()


def free_port(around: Iterable[int] = ()) -> int:
    """Return a port on which nothing listens, and which no other process of tests gets soon.

    Nobody gets the port two below it either: a store that serves RocketMQ's clients at it takes
    that one too, unless its test says otherwise.

    Args:
        around: distances from it at which ports must be free too.
    """
    global _blocks
    if _blocks.pid != os.getpid():
        _blocks = _Blocks()  # those of the parent stay its own
    distances = {0, _VIP, *around}
    least, most = min(distances), max(distances)
    while True:
        port = _blocks.next(most - least + 1) - least
        with ExitStack() as held, suppress(OSError):
            for distance in distances:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port + distance))
            return port
