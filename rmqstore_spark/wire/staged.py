"""The bytes of a connection that have come and are not taken yet: heads of frames, small bodies."""

from __future__ import annotations

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.command import Command, decode_header
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, frame_lengths
from rmqstore_spark.wire.protocol import MAX_FRAME


class StagedBytes:
    """Bytes that were received, in their order.

    Args:
        size: bytes that fit; the header of a frame may have half of them.
    """

    def __init__(self, size: int) -> None:
        self._bytes = memoryview(bytearray(size))
        self._most_header = size // 2
        self._begin = self._end = 0
        self._body = 0  # where that of the frame begins whose head was read

    def __len__(self) -> int:
        """Return how many bytes are there."""
        return self._end - self._begin

    def free(self) -> memoryview:
        """Return where the next bytes go. It is never empty, if `head` was tried before."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._bytes) - self._end < self._most_header:
            rest = self._bytes[self._begin : self._end].tobytes()
            self._bytes[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        return self._bytes[self._end :]

    def add(self, count: int) -> None:
        """Take note that bytes were received."""
        self._end += count

    def head(self) -> tuple[Command, int] | None:
        """Return all of a frame before its body, and the bytes of that, if it is here.

        It stays here until `pass_head`: one that is refused is met again.

        Raises:
            FrameError: what came is not a frame.
        """
        staged = self._end - self._begin
        if staged < HEAD_BYTES:
            return None
        form, header, size = frame_lengths(self._bytes, self._begin, MAX_FRAME)
        if header > self._most_header:
            raise FrameError(f"a header has {header} bytes; the most are {self._most_header}")
        if staged < HEAD_BYTES + header:
            return None
        at = self._begin + HEAD_BYTES
        self._body = at + header
        return decode_header(form, self._bytes[at : self._body].tobytes()), size

    def pass_head(self) -> None:
        """Continue with the body of the frame that `head` returned."""
        self._begin = self._body

    def take(self, out: memoryview) -> int:
        """Move bytes into a buffer, as many as are here and fit; return how many."""
        count = min(self._end - self._begin, len(out))
        out[:count] = self._bytes[self._begin : self._begin + count]
        self._begin += count
        return count

    def drop(self) -> None:
        """Forget all bytes."""
        self._begin = self._end = 0
