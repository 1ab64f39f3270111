"""Reads a part of the log as frames, ready to be sent: one read and one write for many of them."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.ha.frames import HEADER_SIZE, encode_header

__all__ = ["FrameBatch"]

_AT_ONCE: Final = 1 << 20


class FrameBatch:
    """A buffer of frames.

    Args:
        log: the log.
        most: most bytes of the log in a frame (`haTransferBatchSize`).
    """

    def __init__(self, log: PublishedLog, most: int) -> None:
        self._log = log
        self._most = most
        self._frames = max(1, _AT_ONCE // most)
        self._buffer = memoryview(bytearray(self._frames * (HEADER_SIZE + most)))

    def fill(self, at: int) -> tuple[memoryview, int]:
        """Read frames from an offset on, up to the end of its segment.

        Args:
            at: physical offset of the first byte.

        Returns:
            The frames, valid until the next call, and the offset after their last byte; no frames
            if nothing can be read there.

        Raises:
            SegmentExpiredError: the segment is gone.
        """
        left = min(self._log.readable(at), self._frames * self._most)
        bodies, place, next_offset = [], 0, at
        while left:
            size = min(left, self._most)
            self._buffer[place : place + HEADER_SIZE] = encode_header(next_offset, size)
            body = place + HEADER_SIZE
            bodies.append(self._buffer[body : body + size])
            place, next_offset, left = body + size, next_offset + size, left - size
        if bodies:
            self._log.read_into(at, bodies)
        return self._buffer[:place], next_offset
