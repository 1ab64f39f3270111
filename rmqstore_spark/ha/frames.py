"""The bytes of the HA protocol: frames from a master, reports from a slave.

    master -> slave   physicalOffset 8 | size 4 | `size` bytes of the log      (0: a heartbeat)
    slave -> master   physicalOffset 8                                         (all big-endian)

See docs/replication.md, "The protocol" (upstream: HAConnection.WriteSocketService,
HAService.HAClient). A stream can be cut anywhere, so a decoder takes what has arrived, and keeps
what it needs of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from rmqstore_spark.errors import ReplicationError

_HEADER: Final = Struct(">qi")
_REPORT: Final = Struct(">q")
HEADER_SIZE: Final = _HEADER.size
MOST_FRAME_BYTES: Final = 64 << 20
"""A broker's slave takes 4 MiB at most. A frame is not kept as a whole, so this costs nothing."""


class ReceivedBytes(NamedTuple):
    """Bytes of the log that have arrived: a frame, or a part of one.

    Attributes:
        offset: physical offset of the first byte. For a heartbeat: of the next byte to come.
        data: the bytes, valid until the next call; none for a heartbeat.
    """

    offset: int
    data: memoryview


class FrameDecoder:
    """Takes the frames of a master apart, wherever the stream is cut."""

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: memoryview) -> Iterator[ReceivedBytes]:
        """Take bytes of the stream.

        Yields:
            What they hold of the log, and heartbeats, in order.

        Raises:
            ReplicationError: they are not frames.
        """
        at, end = 0, len(data)
        while at < end:
            if self._left:
                taken = min(self._left, end - at)
                yield ReceivedBytes(self._offset, data[at : at + taken])
                self._offset += taken
                self._left -= taken
                at += taken
                continue
            wanted = HEADER_SIZE - len(self._head)
            self._head += bytes(data[at : at + wanted])
            at = min(at + wanted, end)
            if len(self._head) == HEADER_SIZE:
                self._offset, self._left = decode_header(self._head)
                self._head = b""
                if not self._left:
                    yield ReceivedBytes(self._offset, data[:0])


class ReportDecoder:
    """Takes the reports of a slave apart, wherever the stream is cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Take bytes of the stream; return the offsets that they complete."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]


def encode_header(offset: int, size: int) -> bytes:
    """Return the header of a frame; a size of 0 makes it a heartbeat."""
    return _HEADER.pack(offset, size)


def decode_header(head: bytes) -> tuple[int, int]:
    """Return the physical offset and the size that the header of a frame has.

    Raises:
        ReplicationError: these bytes cannot begin a frame.
    """
    offset, size = _HEADER.unpack(head)
    if offset < 0 or not 0 <= size <= MOST_FRAME_BYTES:
        raise ReplicationError(
            f"What the master sent is not a frame (physical offset {offset}, {size} bytes). Is "
            "there a master's HA port at haMasterAddress? A broker's is its listenPort + 1."
        )
    return offset, size


def encode_report(offset: int) -> bytes:
    """Return a report."""
    return _REPORT.pack(offset)
