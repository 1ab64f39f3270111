"""Room for what arrives: frames wait for it before their bytes are read.

Frames of up to SMALL bytes pass without asking. A larger one is read when there is room for all of
it, and until then its bytes stay with the other end. Frames of similar sizes share their room, so
that one of 100 KiB does not wait for many of 4 MiB. Room is given back when a request is finished.

`server.budget` does the same for Spark's clients, whose connections have threads of their own.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from rmqstore_spark.remoting.backlog import Limits

SMALL: Final = 4 << 10
"""Bytes of a frame that needs no room of its own."""
READ_BYTES: Final = 256 << 10
"""Most bytes that are read at once."""
_SHARES: Final = ((64 << 10, 1 / 16), (1 << 20, 1 / 8), (1 << 62, 3 / 16))
"""The rooms: for frames of up to so many bytes, and their part of all room. The rest is for small
frames."""
_READS: Final = 64
"""A read takes at most this part of the room that is left, whatever it will find."""
_TURN_BYTES: Final = 1 << 20
"""Bytes of small frames after which the other reads of the same turn of the event loop take few: as
many requests are decoded for a tenth of a second."""
_NOTED_BYTES: Final = 64 << 10
"""Bytes of a turn that are worth a call at its end, so that those of the next one count alone."""
_LOOK_SECONDS: Final = 0.25
_STALL_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 2.0
_LEAST_RATE: Final = 1 << 20
"""Bytes a second of a frame that was given room, while others wait for such room."""
_MOST_WOKEN: Final = 16


class Asker(Protocol):
    """A connection on which frames arrive.

    Attributes:
        has_asked: whether it has had a request before. It takes turns with those that are new.
    """

    has_asked: bool

    def room_granted(self, size: int) -> int:
        """Receive the frame that waited for room; return how many of its bytes were here."""

    def read_on(self) -> None:
        """Look again whether more should be read."""

    def lose_room(self) -> None:
        """End, and give back the room of the frame that was being received."""


class _Share:
    """Room for frames of a size.

    Attributes:
        most: bytes of all of them. A single one may be larger.
        used: bytes of those that are received or handled.
        queues: who waits, with the sizes: those that are new, and the others.
        receiving: who receives a frame: since when, how many bytes, and when the last one came.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.queues: tuple[dict[Asker, int], dict[Asker, int]] = {}, {}
        self.receiving: dict[Asker, list[float]] = {}
        self._turn = 0

    @property
    def is_contended(self) -> bool:
        return bool(self.queues[0] or self.queues[1])

    def fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.most

    def next(self) -> tuple[Asker, int] | None:
        """Take the first that waits, of both queues in turn, if there is room for it."""
        for queue in (self.queues[self._turn], self.queues[1 - self._turn]):
            if queue:
                asker = next(iter(queue))
                if not self.fits(queue[asker]):
                    return None
                self._turn = 1 - self._turn
                return asker, queue.pop(asker)
        return None


class FrameRoom:
    """Counts what all connections of a server hold of what has arrived.

    Use it in the thread of a running event loop.

    Args:
        limits: of the connections.
    """

    def __init__(self, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._shares = [(size, _Share(int(limits.held * part))) for size, part in _SHARES]
        self._small_most = limits.held - sum(share.most for _, share in self._shares)
        self._small = 0
        self._most = limits.held
        self._used = 0
        self._read = 0  # in this turn, and up to _NOTED_BYTES in those before
        self._is_noted = False
        self._connections = 0
        self._crowded: dict[Asker, None] = {}
        self._look: asyncio.TimerHandle | None = None

    # ---- what is held

    @property
    def used(self) -> int:
        """Bytes of all that is received or handled."""
        return self._used

    @property
    def next_read(self) -> int:
        """Bytes that the next read of any connection may take.

        They are fewer when little room is left, or much was read in this turn of the event loop.
        """
        left = (self._most - self._used) // _READS
        if left >= READ_BYTES and self._read <= _TURN_BYTES - READ_BYTES:
            return READ_BYTES
        return max(min(left, _TURN_BYTES - self._read), SMALL)

    def hold(self, size: int, count: int) -> None:
        """Count bytes of a frame, or of a request that arrived in it.

        Args:
            size: of the frame.
            count: the bytes.
        """
        if size <= SMALL:
            self._small += count
        else:
            self._share(size).used += count
        self._used += count

    def give_back(self, size: int, count: int) -> None:
        """Count bytes no more; see `hold`. Those that wait may get them."""
        self._used -= count
        if size <= SMALL:
            self._small -= count
            if self._crowded and self._small < self._small_most:
                self._wake_crowded()
            return
        share = self._share(size)
        share.used -= count
        if share.is_contended:
            self._grant(share)

    def was_read(self, count: int) -> None:
        """Take note of bytes that were read, which are decoded in this turn of the event loop."""
        self._read += count
        if self._read >= _NOTED_BYTES and not self._is_noted:
            self._is_noted = True
            self._loop.call_soon(self._next_turn)  # before the reads of the next turn

    # ---- connections

    def opened(self) -> None:
        """Take note of a new connection."""
        self._connections += 1

    def closed(self, asker: Asker) -> None:
        """Forget a connection."""
        self._connections -= 1
        self._crowded.pop(asker, None)

    @property
    def is_crowded(self) -> bool:
        """Whether connections hold so many small frames that some are not read; see `may_read`."""
        return self._small > self._small_most

    def may_read(self, asker: Asker, held: int) -> bool:
        """Return whether more small requests of a connection should be read.

        Only one that holds more than its share has to wait, and only if all hold too much.

        Args:
            asker: the connection. Its `read_on` is called when it should look again.
            held: bytes that it holds.
        """
        if self._small <= self._small_most or held <= self._small_most // self._connections:
            return True
        self._crowded[asker] = None
        return False

    def _wake_crowded(self) -> None:
        for asker in list(self._crowded)[:_MOST_WOKEN]:
            del self._crowded[asker]
            asker.read_on()

    # ---- large frames

    def ask(self, asker: Asker, size: int, early: int) -> bool:
        """Ask for the room of a frame of more than SMALL bytes.

        Args:
            asker: the connection.
            size: of the frame.
            early: how many of its bytes are here already; they count until it is granted room.

        Returns:
            Whether it is granted now. If not, `room_granted` is called later.
        """
        share = self._share(size)
        if not share.is_contended and share.fits(size):
            self._begin(share, asker, size)
            return True
        share.queues[asker.has_asked][asker] = size
        self._used += early
        self._look_later()
        return False

    def arrived(self, asker: Asker, size: int, count: int) -> None:
        """Take note of bytes of a frame that was given room."""
        progress = self._share(size).receiving[asker]
        progress[1] += count
        progress[2] = self._loop.time()

    def ended(self, asker: Asker, size: int) -> None:
        """Take note that a frame that was given room is complete, or not wanted. It counts on."""
        self._share(size).receiving.pop(asker, None)

    def withdraw(self, asker: Asker, size: int, early: int) -> None:
        """Take note that a frame does not wait for room any more; see `ask`."""
        self._used -= early
        for queue in self._share(size).queues:
            queue.pop(asker, None)

    def _next_turn(self) -> None:
        self._read = 0
        self._is_noted = False

    def _share(self, size: int) -> _Share:
        return next(share for most, share in self._shares if size <= most)

    def _begin(self, share: _Share, asker: Asker, size: int) -> None:
        share.used += size
        self._used += size
        now = self._loop.time()
        share.receiving[asker] = [now, 0.0, now]

    def _grant(self, share: _Share) -> None:
        while (found := share.next()) is not None:
            asker, size = found
            self._begin(share, asker, size)
            self._used -= asker.room_granted(size)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_SECONDS, self._end_stalled)

    def _end_stalled(self) -> None:
        """Take room from those that do not use it while others wait for it."""
        self._look = None
        now = self._loop.time()
        for _, share in self._shares:
            if not share.is_contended:
                continue
            for asker, (since, count, moved) in list(share.receiving.items()):
                late = now - since - _GRACE_SECONDS
                if now - moved > _STALL_SECONDS or (late > 0 and count < late * _LEAST_RATE):
                    asker.lose_room()
            if share.is_contended:
                self._look_later()
