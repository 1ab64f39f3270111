"""Collects bytes of the log that follow those in the store, until records are whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.engine.append.stamped import MAX_UNIT_SIZE
from rmqstore_spark.layout.spans import U1

_ROOM: Final = 4 << 20
_MOST: Final = MAX_UNIT_SIZE + _ROOM


class Incoming:
    """Bytes that were received and are not in the store yet.

    Attributes:
        size: their number.
    """

    def __init__(self) -> None:
        self._buffer: U1 = np.empty(0, np.uint8)
        self.size = 0

    @property
    def data(self) -> U1:
        """The bytes. They are not changed any more once `drop` was called."""
        return self._buffer[: self.size]

    @property
    def room(self) -> int:
        """How many bytes can be added before some should be dropped."""
        return (len(self._buffer) or _ROOM) - self.size

    def add(self, data: memoryview) -> None:
        """Add bytes, at most as many as there is room for."""
        if not len(self._buffer):
            self._buffer = np.empty(_ROOM, np.uint8)
        end = self.size + len(data)
        self._buffer[self.size : end] = np.frombuffer(data, np.uint8)
        self.size = end

    def drop(self, count: int) -> None:
        """Drop the first bytes, which are in the store; later ones are copied elsewhere.

        If nothing is dropped although there is no room, a record is larger: there is more room
        then.
        """
        if not count and self.room:
            return
        rest = self.data[count:]
        room = _ROOM if len(rest) < _ROOM else min(2 * len(rest), _MOST)
        self._buffer = np.empty(room, np.uint8)
        self._buffer[: len(rest)] = rest
        self.size = len(rest)
