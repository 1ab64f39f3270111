"""The frames that arrive on a connection, read directly to where they stay.

What a connection shares with the others of its server is the buffer of a read. Small frames are
taken out of it. A larger one gets a buffer of its own as soon as there is room for all of it, and
the rest of it is received there.
"""

from __future__ import annotations

import numpy as np

from rmqstore_spark.errors import FrameError
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, frame_size
from rmqstore_spark.remoting.codec.plain import arrived, plain_sends
from rmqstore_spark.remoting.room import READ_BYTES, SMALL, Asker, FrameRoom


class Scratch:
    """The buffer for the next read of any connection of an event loop.

    What a read finds is taken out of it before the next one begins.

    Attributes:
        buffer: the buffer.
    """

    def __init__(self) -> None:
        # The begin of a small frame may lie before what is read.
        self.buffer = memoryview(np.empty(SMALL + READ_BYTES, np.uint8))  # type: ignore[arg-type]


class FrameInbox:
    """Puts frames together.

    Args:
        asker: the connection.
        room: for frames that are not small.
        scratch: where reads go.
        most: most bytes of a frame.

    Attributes:
        held: bytes of a frame that has not arrived as a whole, or the room that it was given.
        wanted: the size of a frame that waits for room; 0 if none does. Meanwhile nothing is read.
    """

    def __init__(self, asker: Asker, room: FrameRoom, scratch: Scratch, most: int) -> None:
        self.held = self.wanted = 0
        self._asker = asker
        self._room = room
        self._scratch = scratch.buffer
        self._most = most
        self._part = b""  # the begin of a frame, in no buffer of its own
        self._frame: memoryview | None = None
        self._at = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes go."""
        if self._frame is not None:
            return self._frame[self._at :]
        begin = len(self._part)
        return self._scratch[begin : begin + self._room.next_read]

    def received(self, count: int) -> tuple[list[Command], FrameError | None]:
        """Take bytes that were received into the buffer.

        A command that is larger than SMALL is counted by the room, until the caller gives it back.
        The caller counts the others as well, if it keeps them.

        Returns:
            The commands that are complete, and what is wrong with the bytes behind them; None if
            nothing is. After an error, no more can be read.
        """
        if self._frame is not None:
            return self._received_here(count)
        part = self._part
        view = self._scratch[: len(part) + count]
        if part:
            view[: len(part)] = part
            self._part = b""
            self.held = 0
        wrong = None
        found, at = plain_sends(view, self._most)  # nearly all frames, nearly always
        if at > SMALL:
            for command in found:
                if command.size > SMALL:
                    self._room.hold(command.size, command.size)
        if at < len(view):
            wrong = self._read_others(view, at, found)
        self._room.was_read(count)
        return found, wrong

    def _read_others(self, view: memoryview, at: int, found: list[Command]) -> FrameError | None:
        """Read frames of any kind, and keep the begin of one that is not complete.

        Args:
            view: the bytes.
            at: where the first begins.
            found: gets their commands.

        Returns:
            What is wrong with the bytes.
        """
        size = 0
        try:
            while len(view) - at >= HEAD_BYTES:
                size = frame_size(view, at, self._most)
                if len(view) - at < size:
                    break
                found.append(arrived(view[at : at + size]))
                if size > SMALL:
                    self._room.hold(size, size)
                at, size = at + size, 0
        except FrameError as error:
            return error
        if at < len(view):
            self._begin(view[at:], size)
        return None

    def granted(self, size: int) -> int:
        """Receive the frame that waited for room; return how many of its bytes were here."""
        part, self._part, self.wanted = self._part, b"", 0
        self._install(size, memoryview(part))
        return len(part)

    def close(self) -> None:
        """Give back the room of a frame that is not complete."""
        if self._frame is not None:
            size, self._frame = len(self._frame), None
            self._room.ended(self._asker, size)
            self._room.give_back(size, size)
        elif self.wanted:
            size, self.wanted = self.wanted, 0
            self._room.withdraw(self._asker, size, len(self._part))
        self._part = b""
        self.held = 0

    def _begin(self, begin: memoryview, size: int) -> None:
        """Keep the begin of a frame, whose size is 0 as long as it is not known."""
        self.held = len(begin)
        if size <= SMALL:
            self._part = begin.tobytes()
        elif self._room.ask(self._asker, size, len(begin)):
            self._install(size, begin)
        else:
            self.wanted, self._part = size, begin.tobytes()

    def _install(self, size: int, begin: memoryview) -> None:
        """Allocate the buffer of a frame, whose begin has arrived."""
        self._frame = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        self._frame[: len(begin)] = begin
        self.held = size
        self._at = len(begin)
        self._room.arrived(self._asker, size, len(begin))

    def _received_here(self, count: int) -> tuple[list[Command], FrameError | None]:
        frame = self._frame
        assert frame is not None  # noqa: S101  # the caller has looked
        self._at += count
        self._room.arrived(self._asker, len(frame), count)
        if self._at < len(frame):
            return [], None
        self._frame = None
        self.held = 0
        self._room.ended(self._asker, len(frame))
        try:
            return [arrived(frame)], None
        except FrameError as error:
            self._room.give_back(len(frame), len(frame))
            return [], error
