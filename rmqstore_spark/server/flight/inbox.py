"""The messages that a call's client sends, under flow control.

A client may send INITIAL_WINDOW bytes on a stream at any time. A larger message is received only
once the budget has room for all of it; until then the client waits. Small messages are covered by
the window, which opens again when the handler has taken them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.server.budget import Budget, Room
from rmqstore_spark.server.flight.received import ReceivedMessage

__all__ = ["INITIAL_WINDOW", "Inbox", "MessageTooLargeError", "is_too_slow"]

INITIAL_WINDOW: Final = 128 << 10
_SMALL: Final = INITIAL_WINDOW // 2
_AHEAD_BYTES: Final = 4 << 20
"""Maximum bytes that a stream receives ahead of its handler. A single message may be larger."""
_MOST_QUEUED: Final = 256
"""Maximum messages that a stream receives ahead of its handler. Empty ones use memory, but no
window."""
_PREFIX: Final = 5
_GRACE_SECONDS: Final = 2.0
_LEAST_RATE: Final = 1 << 20
"""Least bytes per second of a message that was given room, while others wait for room."""


class MessageTooLargeError(Exception):
    """The client sent a message that is larger than the limit, or compressed."""


def is_too_slow(seconds: float, count: int) -> bool:
    """Return whether a client sent its bytes too slowly, while others wait for room."""
    late = seconds - _GRACE_SECONDS
    return late > 0 and count < late * _LEAST_RATE


class Inbox:
    """Puts the messages of one call together, and counts the bytes that its client may send.

    Not thread-safe: the stream guards it with its lock.

    Args:
        room: the room for messages that the window does not cover.
        most: maximum bytes of a message.

    Attributes:
        wanted: the size of a message that waits for room; 0 if none does.
        refusal: why nothing more is received, or None.
        moved: when a message was complete, in monotonic seconds.
    """

    def __init__(self, room: Room, most: int) -> None:
        self.wanted = 0
        self.refusal: MessageTooLargeError | None = None
        self.moved = time.monotonic()
        self._rooms = room
        self._budget = room.small  # pays for the message that is being received
        self._most = most
        self._room = INITIAL_WINDOW
        self._refund = 0
        self._prefix = bytearray()
        self._target: U1 | None = None
        self._at = self._charge = 0
        self._since = 0.0
        self._prepaid = 0  # bytes still to come that were granted already
        self._early: bytearray | None = None  # bytes that wait for room
        self._queue: deque[ReceivedMessage] = deque()
        self._held = 0
        self._is_discarding = False

    def __len__(self) -> int:
        """Return the number of messages that the handler has not taken."""
        return len(self._queue)

    @property
    def budget(self) -> Budget:
        """The budget that the message in progress draws on."""
        return self._budget

    # ---- bytes in ------------------------------------------------------------------------------

    def take_room(self, count: int) -> bool:
        """Count bytes that the client sends; return False if they exceed its room."""
        self._room -= count
        return self._room >= 0

    def room_for(self, count: int) -> memoryview | None:
        """Return the buffer for the next bytes of a large message, so that they are not copied."""
        if self._target is None or self._early is not None:
            return None
        return memoryview(self._target)[self._at : self._at + count]  # type: ignore[arg-type]

    def received(self, count: int) -> bool:
        """Take bytes that were received into the buffer of `room_for`; see `feed`."""
        self._at += count
        return self._complete()

    def skip(self, count: int) -> None:
        """Take padding that was received."""
        self._refund += count

    def feed(self, data: memoryview) -> bool:
        """Take bytes that were received.

        Returns:
            Whether the handler has something to do: a message is complete, waits for room, or was
            refused.
        """
        is_news = False
        while len(data) and self.refusal is None and not self._stashed(data):
            if self._is_discarding:
                prepaid = min(len(data), self._prepaid)
                self._prepaid -= prepaid
                self._refund += len(data) - prepaid
                break
            if len(self._queue) >= _MOST_QUEUED:
                self._early = bytearray(data)
                break
            if self._target is None:
                data = self._begin_message(data)
                is_news = is_news or bool(self._queue or self.wanted or self.refusal)
                continue
            count = min(len(data), len(self._target) - self._at)
            self._target[self._at : self._at + count] = data[:count]
            self._at += count
            data = data[count:]
            is_news = self._complete() or is_news
        return is_news

    def _stashed(self, data: memoryview) -> bool:
        """Keep bytes that have no room yet, within the window; return False if there is room."""
        if self._early is None:
            return False
        self._early += data
        return True

    def _begin_message(self, data: memoryview) -> memoryview:
        """Take the prefix of a message; return the rest."""
        missing = _PREFIX - len(self._prefix)
        self._prefix += data[:missing]
        if len(self._prefix) < _PREFIX:
            return data[missing:]
        size = int.from_bytes(self._prefix[1:], "big")
        is_compressed = self._prefix[0] != 0
        self._prefix.clear()
        if is_compressed or size > self._most:
            what = "compressed" if is_compressed else f"of {size} bytes, and may have {self._most}"
            self.refusal = MessageTooLargeError(f"a message is {what}")
        elif size <= _SMALL:
            self._install(size, 0)
        else:
            self._budget = self._rooms.of(size)
            if self._held + size <= max(_AHEAD_BYTES, size) and self._budget.try_take(size):
                self._install(size, size)
            else:
                self.wanted, self._early = size, bytearray()
        return data[missing:]

    def _install(self, size: int, charge: int) -> None:
        """Allocate a message. If it is charged to the budget, let the client send all of it."""
        self._target, self._at, self._charge = np.empty(size, np.uint8), 0, charge
        self._since = time.monotonic()
        self._held += charge
        if charge:
            self._refund += _PREFIX + size
        self._complete()

    def _complete(self) -> bool:
        if self._target is None or self._at < len(self._target):
            return False
        self.moved = time.monotonic()
        self._queue.append(ReceivedMessage(self._target, self._budget, self._charge))
        self._target, self._charge = None, 0
        return True

    # ---- messages out --------------------------------------------------------------------------

    def take(self) -> ReceivedMessage | None:
        """Return the next message if it is complete."""
        if not self._queue:
            return None
        message = self._queue.popleft()
        self._held -= message.charge
        if not message.charge:
            self._refund += _PREFIX + len(message.data)
        return message

    def proceed(self) -> None:
        """Take the bytes that waited for the handler."""
        if not self._queue and not self.wanted and self._early is not None:
            early, self._early = self._early, None
            self.feed(memoryview(early))

    def give_room(self, size: int) -> bool:
        """Receive the message that waits for room, which was taken from its budget.

        Returns:
            False if no message waits any more: the room is not used.
        """
        if self._early is None:
            return False
        early, self._early, self.wanted = self._early, None, 0
        self._install(size, size)
        self.feed(memoryview(early))
        return True

    def discard(self) -> None:
        """Give back the room of all messages and the client's window, and discard what follows."""
        self._is_discarding = True
        for message in self._queue:
            if not message.charge:
                self._refund += _PREFIX + len(message.data)
            message.release()
        self._queue.clear()
        if self._charge and self._target is not None:
            self._prepaid = len(self._target) - self._at
            self._budget.give_back(self._charge)
        elif self._target is not None:
            self._refund += _PREFIX + self._at
        self._refund += len(self._prefix) + len(self._early or b"")
        self._prefix.clear()
        if self.wanted:
            self._refund += _PREFIX
        self._target, self._early, self._charge, self.wanted, self._held = None, None, 0, 0, 0

    # ---- room ----------------------------------------------------------------------------------

    @property
    def is_contended(self) -> bool:
        """Whether others wait for room that received messages hold."""
        return bool(self._held or self._charge) and self._budget.is_contended

    def is_filled_too_slowly(self, now: float) -> bool:
        """Whether the client is too slow to fill the room that others wait for."""
        if not self._charge or not self._budget.is_contended:
            return False
        return is_too_slow(now - self._since, self._at)

    def take_refund(self) -> int:
        """Return how many more bytes the client may send, once they are many or it needs them."""
        count = self._refund
        if not count or (count < _SMALL and not self._is_starving()):
            return 0
        self._refund = 0
        self._room += count
        return count

    def _is_starving(self) -> bool:
        """Whether the client cannot continue without more room."""
        return self._room < _SMALL or self._charge > 0
