"""Frames: commands to bytes, and bytes to commands in whatever pieces they arrive.

A frame is its length, a mark (form and length of the header), the header and the body, all numbers
big-endian. Upstream: NettyEncoder, NettyDecoder.
"""

from __future__ import annotations

import struct
from typing import Final

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.command import Command, decode_header

MAX_FRAME: Final = 1 << 24
"""Most bytes of a frame with its length, as in RocketMQ (com.rocketmq.remoting.frameMaxLength)."""
MAX_HEADER: Final = 1 << 18
"""Most bytes of a header. The longest holds 32 KiB of a message's properties, each byte of which
JSON may write as six."""

_HEAD: Final = struct.Struct(">iI")
_MARK: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size
"""Bytes at the front of a frame that say how long it is, and its header."""


def frame_head(command: Command, size: int, most: int = MAX_FRAME) -> bytes:
    """Return all of a frame before its body.

    Args:
        command: its body is passed over.
        size: bytes of the body.
        most: most bytes that the frame may have.

    Raises:
        FrameError: the command does not fit a frame.
    """
    header = command.encode_header()
    length = 4 + len(header) + size
    if len(header) > MAX_HEADER or 4 + length > most:
        raise FrameError(
            f"a command with a header of {len(header)} and a body of {size} bytes does not fit a "
            f"frame; the most are {MAX_HEADER}, and {most} together"
        )
    return _HEAD.pack(length, command.form << 24 | len(header)) + header


def frame_parts(command: Command) -> tuple[bytes, bytes]:
    """Return a frame in two parts: all before the body, and the body, which is not copied.

    Raises:
        FrameError: the command does not fit a frame.
    """
    return frame_head(command, len(command.body)), command.body


def encode_frame(command: Command) -> bytes:
    """Return a command as a frame.

    Raises:
        FrameError: the command does not fit a frame.
    """
    return b"".join(frame_parts(command))


def frame_size(data: memoryview, at: int, most: int) -> int:
    """Return how many bytes a frame has, with its length.

    Args:
        data: has HEAD_BYTES of it, or more.
        at: where it begins.
        most: most bytes that it may have.

    Raises:
        FrameError: it is longer, or its lengths do not fit each other.
    """
    _, header, body = frame_lengths(data, at, most)
    return HEAD_BYTES + header + body


def frame_lengths(data: memoryview, at: int, most: int) -> tuple[int, int, int]:
    """Return the form of a frame's header, and the bytes of the header and of the body.

    Args:
        data, at, most: as for `frame_size`.

    Raises:
        FrameError: the frame is longer than `most`, or its lengths do not fit each other.
    """
    length, mark = _HEAD.unpack_from(data, at)
    header = mark & 0xFFFFFF
    if not 4 <= length <= most - 4:
        raise FrameError(f"a frame's length is {length}; it is from 4 to {most - 4} bytes")
    if header > length - 4 or header > MAX_HEADER:
        raise FrameError(
            f"a header's length is {header} in a frame of {length} bytes; the most are {MAX_HEADER}"
        )
    return mark >> 24, header, length - 4 - header


def command_of(frame: memoryview) -> Command:
    """Return the command in a frame that is complete, and whose size was checked.

    Raises:
        FrameError: its header is none.
    """
    (mark,) = _MARK.unpack_from(frame, 4)
    body = HEAD_BYTES + (mark & 0xFFFFFF)
    command = decode_header(mark >> 24, frame[HEAD_BYTES:body].tobytes())
    command.body = frame[body:].tobytes()
    command.size = len(frame)
    return command


class FrameReader:
    """Finds the frames in a stream of bytes.

    Args:
        max_frame: most bytes of a frame with its length.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._part = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a frame that has not arrived as a whole."""
        return len(self._part)

    def feed(self, data: bytes) -> tuple[list[Command], FrameError | None]:
        """Take bytes.

        Returns:
            The commands that are complete, and what is wrong with the bytes behind them; None if
            nothing is. After an error, no more can be read.
        """
        whole = self._part
        if whole:
            whole += data
        found: list[Command] = []
        error = None
        at = 0
        with memoryview(whole or data) as view:
            try:
                while len(view) - at >= HEAD_BYTES:
                    end = at + frame_size(view, at, self._max_frame)
                    if len(view) < end:
                        break
                    found.append(command_of(view[at:end]))
                    at = end
            except FrameError as wrong:
                error = wrong
        if error is not None:
            self._part = bytearray()
        elif whole:
            del whole[:at]
        else:
            whole += data[at:]
        return found, error
