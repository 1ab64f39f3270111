"""Ports for servers that must know theirs before they listen, or cannot choose it."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

__all__ = ["CONNECT_PORT", "free_port", "holding"]

CONNECT_PORT: Final = 15_002
"""Of a Spark Connect server that a session starts itself."""

_BLOCK: Final = 100
_BLOCKS: Final = [
    begin for begin in range(12_000, 30_000, _BLOCK) if CONNECT_PORT - begin not in range(_BLOCK)
]
"""Below the ports that Linux gives to outgoing connections: none of them takes one meanwhile."""

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
        while True:
            begin = _DRAWN.choice(_BLOCKS)
            descriptor = _opened(begin)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._held.append(descriptor)
            if len(self._held) > _HELD:
                os.close(self._held.pop(0))
            return range(begin, begin + _BLOCK)


def _opened(first: int) -> int:
    """Open the file whose lock says that a process of tests on this machine has a port."""
    folder = os.path.join(tempfile.gettempdir(), f"rmqstore-tests-ports-{os.getuid()}")
    os.makedirs(folder, exist_ok=True)
    return os.open(os.path.join(folder, str(first)), os.O_RDWR | os.O_CREAT, 0o600)


@contextmanager
def holding(port: int) -> Iterator[None]:
    """Wait until no other process of tests on this machine holds a port, and hold it."""
    descriptor = _opened(port)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
