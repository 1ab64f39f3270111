"""Sends parts of the log as frames: straight from the page cache, or over TLS from a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.ha.connection import HaConnection
from rmqstore_spark.ha.frames import HEADER_SIZE, encode_header

_AT_ONCE: Final = 1 << 20


class FrameSender:
    """Sends frames over one connection. Used by one thread at a time.

    Args:
        log: the log.
        connection: to the slave.
        most: most bytes of the log in a frame (`haTransferBatchSize`).
    """

    def __init__(self, log: PublishedLog, connection: HaConnection, most: int) -> None:
        self._log = log
        self._connection = connection
        self._most = most
        self._at_once = max(1, _AT_ONCE // most) * most
        self._buffer = memoryview(b"")

    def sendable(self, at: int) -> int:
        """Return up to which offset `send` can send from an offset on.

        That is the offset itself at the end of the log, and at most the end of its segment.

        Raises:
            SegmentExpiredError: the segment is gone.
        """
        return at + min(self._log.readable(at), self._at_once)

    def send(self, at: int, end: int) -> None:
        """Send the log between two offsets, which `sendable` has allowed.

        Raises:
            SegmentExpiredError: the segment is gone.
            TimeoutError: the slave did not take it.
            OSError: the connection broke.
        """
        if self._connection.is_encrypted:
            self._send_copy(at, end)
            return
        deadline = self._connection.deadline()
        with self._log.segment(at) as (descriptor, begin):
            for offset, size in self._frames(at, end):
                self._connection.sendall(encode_header(offset, size), more=True)
                sent = self._connection.send_file(descriptor, offset - begin, size, deadline)
                if sent < size:
                    raise self._log.shorter(at)

    def _send_copy(self, at: int, end: int) -> None:
        """Send many frames with one read and one write."""
        if not self._buffer:
            room = self._at_once // self._most * (HEADER_SIZE + self._most)
            self._buffer = memoryview(bytearray(room))
        bodies, place = [], 0
        for offset, size in self._frames(at, end):
            body = place + HEADER_SIZE
            self._buffer[place:body] = encode_header(offset, size)
            place = body + size
            bodies.append(self._buffer[body:place])
        self._log.read_into(at, bodies)
        self._connection.sendall(self._buffer[:place])

    def _frames(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        for offset in range(at, end, self._most):
            yield offset, min(end - offset, self._most)
