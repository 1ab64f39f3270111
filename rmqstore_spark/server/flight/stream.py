"""One call: the messages that a client sends, and those that go back.

A client may send INITIAL_WINDOW bytes of a stream unasked. A larger message is received only when
the budget has room for all of it; the client waits until then. Small messages are paid for by the
window itself: it opens again when the handler has taken them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.flight.frames import ErrorCode
from rmqstore_spark.server.flight.outbound import Outbound
from rmqstore_spark.server.flight.status import EndedError, Status
from rmqstore_spark.server.flight.transport import Transport

__all__ = ["INITIAL_WINDOW", "MessageTooLargeError", "ReceivedMessage", "Stream"]

INITIAL_WINDOW: Final = 128 << 10
_SMALL: Final = INITIAL_WINDOW // 2
_AHEAD_BYTES: Final = 4 << 20
"""Of a stream that are received while others of it are not handled yet. One message always is."""
_MOST_QUEUED: Final = 256
"""Messages that are received and not handled: an empty one costs no window, and yet memory."""
_PREFIX: Final = 5
_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 2.0
_LEAST_RATE: Final = 1 << 20
"""Bytes a second of a message for which room was made, while others wait for room."""

_NOTHING: Final = np.empty(0, np.uint8)


class MessageTooLargeError(Exception):
    """The client sends a message that is larger than any may be."""


class ReceivedMessage:
    """A message of a client.

    Attributes:
        data: uint8[bytes], which the handler may write to.
        charge: bytes of the budget that it takes.
    """

    def __init__(self, data: U1, budget: Budget, charge: int) -> None:
        self.data = data
        self._budget = budget
        self.charge = charge

    @property
    def view(self) -> memoryview:
        """The same bytes, not to be written to."""
        return memoryview(self.data).toreadonly()  # type: ignore[arg-type]

    def release(self) -> None:
        """Give back the room that it takes; there are no bytes any more."""
        self.data = _NOTHING
        charge, self.charge = self.charge, 0
        if charge:
            self._budget.give_back(charge)


class Link(Protocol):
    """The connection of a call, as the call sees it.

    Attributes:
        transport: its socket.
        out: what goes to the client.
    """

    transport: Transport
    out: Outbound

    def trust(self) -> None:
        """A call was let in: the client may send as much as its calls are given room for."""

    def hang_up(self) -> None:
        """End the connection."""

    def forget(self, stream: Stream) -> None:
        """A call is over."""


class Stream:
    """One call. The connection's thread receives, a handler's thread reads and sends.

    Args:
        connection: that it belongs to.
        number: HTTP/2's.
        headers: of the call.
        room: for messages that the window does not pay for.
        most: bytes of a message.
        window: bytes that may be sent to the client at first.

    Attributes:
        moved: monotonic seconds when the client last sent a message, or took something.
        blocked_since: monotonic seconds since which an answer waits for the client to take it.
    """

    def __init__(
        self,
        connection: Link,
        number: int,
        headers: dict[str, list[str]],
        room: Room,
        most: int,
        window: int,
    ) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.send_window = window  # guarded by the connection
        self.moved = time.monotonic()
        self._rooms = room
        self._budget = room.small  # of the message that is being received
        self._most = most
        self._changed = threading.Condition()
        self._room = INITIAL_WINDOW
        self._refund = 0
        self._prefix = bytearray()
        self._target: U1 | None = None
        self._at = self._charge = 0
        self._since = 0.0
        self._prepaid = 0  # bytes still to come that the client was given room for already
        self.blocked_since: float | None = None  # guarded by the connection
        self._early: bytearray | None = None  # what came while there is no room for its message
        self._wanted = 0
        self._queue: deque[ReceivedMessage] = deque()
        self._held = 0
        self._failure: Exception | None = None
        self._is_discarding = self._has_ended = False
        self._has_begun_answer = self._is_over = False

    # ---- the connection's thread ---------------------------------------------------------------

    def take_room(self, count: int) -> bool:
        """Count bytes that the client sends; False where it was not given room for them."""
        with self._changed:
            self._room -= count
            return self._room >= 0

    def room_for(self, count: int) -> memoryview | None:
        """Where the next bytes of a large message go, so that they need no copy."""
        with self._changed:
            if self._target is None or self._early is not None:
                return None
            return memoryview(self._target)[self._at : self._at + count]  # type: ignore[arg-type]

    def received(self, count: int) -> None:
        """Bytes have arrived where `room_for` said."""
        with self._changed:
            self.moved = time.monotonic()
            self._at += count
            self._complete()
        self._send_refund()

    def receive(self, data: memoryview) -> None:
        """Bytes have arrived."""
        with self._changed:
            self._feed(data)
        self._send_refund()

    def skip(self, count: int) -> None:
        """Padding has arrived."""
        with self._changed:
            self._refund += count
        self._send_refund()

    @property
    def has_ended(self) -> bool:
        """Whether the client sends nothing more."""
        return self._has_ended

    def end_messages(self) -> None:
        """The client sends nothing more."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def fail(self, failure: Exception) -> None:
        """Let whoever reads or sends fail from now on."""
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
        self.connection.out.wake()

    # ---- a handler's thread --------------------------------------------------------------------

    def read(self, idle_seconds: float, room_seconds: float) -> ReceivedMessage | None:
        """The client's next message; None after the last.

        Args:
            idle_seconds: how long the client may send nothing.
            room_seconds: how long a large message may wait for room.

        Raises:
            EndedError: the client has gone.
            TooLargeError: the message is larger than any may be.
            OverBudgetError: there was no room for it in time, or the client was too slow to fill
                the room that others wait for.
            TimeoutError: nothing came for so long.
        """
        with self._changed:
            self.moved = time.monotonic()
        while (message := self._next()) is None:
            with self._changed:
                self._check()
                if self._has_ended and not self._queue and not self._wanted:
                    return None
                wanted = self._wanted
                if not wanted and not self._queue:
                    self._changed.wait(min(_LOOK_SECONDS, idle_seconds))
                    self._check_pace(idle_seconds)
            if wanted:
                self._make_room(wanted, room_seconds)
        self._send_refund()
        return message

    def ready(self) -> ReceivedMessage | None:
        """The next message, if it is here already."""
        message = self._next()
        self._send_refund()
        return message

    def drain(self, idle_seconds: float) -> None:
        """Discard what the client still sends, until it ends, for so long at most.

        Where a stream ends that its client still writes into, Flight at the client drops answers
        that it has not taken yet.
        """
        with self._changed:
            self._is_discarding = True
            self._drop_messages()
        self._send_refund()
        deadline = time.monotonic() + idle_seconds
        with self._changed:
            while not (self._has_ended or self._failure) and time.monotonic() < deadline:
                self._changed.wait(_LOOK_SECONDS)

    def send(
        self, *parts: bytes | memoryview, seconds: float, budget: Budget | None = None
    ) -> None:
        """Send a message.

        Args:
            parts: of the message.
            seconds: how long the client may not take anything.
            budget: which the message draws on; a client that takes it slowly loses it when others
                wait for room.

        Raises:
            EndedError: the client has gone.
            TimeoutError: it did not take it.
            OverBudgetError: others wait for the room that this stream takes.
        """
        size = sum(map(len, parts))
        head = b"\0" + size.to_bytes(4, "big")
        begins, self._has_begun_answer = not self._has_begun_answer, True
        self.connection.out.send_data(self, [head, *parts], begins, seconds, budget)

    @property
    def failure(self) -> Exception | None:
        """Why the stream does not go on."""
        return self._failure

    def check_blocked(self, seconds: float, sent: int, budget: Budget | None) -> None:
        """Look whether an answer may wait on for the client to take it.

        Args:
            seconds: for which it has been sent.
            sent: bytes of it that the client took.
            budget: see `send`.

        Raises:
            OverBudgetError: others wait for the room that the answer, or what the client sent
                meanwhile, takes.
            EndedError: the stream has ended.
        """
        self._check()
        late = seconds - _GRACE_SECONDS
        if late <= 0 or sent >= late * _LEAST_RATE:
            return
        holds = bool(self._held or self._charge)
        if (budget is not None and budget.is_contended) or (holds and self._budget.is_contended):
            raise OverBudgetError

    def finish(self, status: Status) -> None:
        """End the call, and give back what it holds."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = self._is_discarding = True
            is_gone = isinstance(self._failure, EndedError)
            self._failure = self._failure or EndedError("the call is over")
            self._drop_messages()
            has_ended = self._has_ended
        self.connection.forget(self)
        if is_gone:
            return
        self.connection.out.send_trailers(
            self.number, status.trailers(), not self._has_begun_answer
        )
        if not has_ended:
            self.connection.out.reset(self.number, ErrorCode.NO_ERROR)

    def _check(self) -> None:
        """Raise what ended the stream; each time anew.

        An error that is kept holds, by its traceback, all that those who raised it had at hand.
        """
        failure = self._failure
        if failure is not None:
            raise type(failure)(*failure.args)

    # ---- under the lock ------------------------------------------------------------------------

    def _feed(self, data: memoryview) -> None:
        while len(data) and self._failure is None and not self._stashed(data):
            if self._is_discarding:
                prepaid = min(len(data), self._prepaid)
                self._prepaid -= prepaid
                self._refund += len(data) - prepaid
                return
            if len(self._queue) >= _MOST_QUEUED:
                self._early = bytearray(data)
                return
            if self._target is None:
                data = self._begin_message(data)
                continue
            count = min(len(data), len(self._target) - self._at)
            self._target[self._at : self._at + count] = data[:count]
            self._at += count
            data = data[count:]
            self._complete()

    def _stashed(self, data: memoryview) -> bool:
        """Keep what has no place yet, within the window; False where it has one."""
        if self._early is None:
            return False
        self._early += data
        return True

    def _begin_message(self, data: memoryview) -> memoryview:
        """Take the prefix of a message; gives the rest."""
        missing = _PREFIX - len(self._prefix)
        self._prefix += data[:missing]
        if len(self._prefix) < _PREFIX:
            return data[missing:]
        size = int.from_bytes(self._prefix[1:], "big")
        is_compressed = self._prefix[0] != 0
        self._prefix.clear()
        if is_compressed or size > self._most:
            what = "compressed" if is_compressed else f"of {size} bytes, and may have {self._most}"
            self._failure = MessageTooLargeError(f"a message is {what}")
            self._changed.notify_all()
        elif size <= _SMALL:
            self._install(size, 0)
        else:
            self._budget = self._rooms.of(size)
            if self._held + size <= max(_AHEAD_BYTES, size) and self._budget.try_take(size):
                self._install(size, size)
            else:
                self._wanted, self._early = size, bytearray()
                self._changed.notify_all()
        return data[missing:]

    def _install(self, size: int, charge: int) -> None:
        """Make a place for a message; one that is charged for lets the client send all of it."""
        self._target, self._at, self._charge = np.empty(size, np.uint8), 0, charge
        self._since = time.monotonic()
        self._held += charge
        if charge:
            self._refund += _PREFIX + size
        self._complete()

    def _complete(self) -> None:
        if self._target is None or self._at < len(self._target):
            return
        self.moved = time.monotonic()
        self._queue.append(ReceivedMessage(self._target, self._budget, self._charge))
        self._target, self._charge = None, 0
        self._changed.notify_all()

    def _next(self) -> ReceivedMessage | None:
        with self._changed:
            if not self._queue:
                return None
            message = self._queue.popleft()
            self._held -= message.charge
            if not message.charge:
                self._refund += _PREFIX + len(message.data)
            if not self._queue and not self._wanted and self._early is not None:
                early, self._early = self._early, None
                self._feed(memoryview(early))
            return message

    def _check_pace(self, idle_seconds: float) -> None:
        now = time.monotonic()
        if self._queue or self._has_ended or self._failure is not None:
            return
        if now - self.moved > idle_seconds:
            raise TimeoutError
        if self._charge and self._budget.is_contended:
            late = now - self._since - _GRACE_SECONDS
            if late > 0 and self._at < late * _LEAST_RATE:
                raise OverBudgetError

    def _drop_messages(self) -> None:
        """Give back all that was received, its room and the client's window."""
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
        if self._wanted:
            self._refund += _PREFIX
        self._target, self._early, self._charge, self._wanted, self._held = None, None, 0, 0, 0

    # ---- room ----------------------------------------------------------------------------------

    def _make_room(self, size: int, seconds: float) -> None:
        self._budget.take(size, seconds)
        with self._changed:
            early = self._early
            if early is None or self._failure is not None:
                self._budget.give_back(size)
                return
            self._early, self._wanted = None, 0
            self._install(size, size)
            self._feed(memoryview(early))
        self._send_refund()

    def _send_refund(self) -> None:
        """Let the client send as much more as was taken in."""
        with self._changed:
            count = self._refund
            if not count or (count < _SMALL and not self._is_starving()):
                return
            self._refund = 0
            self._room += count
        self.connection.out.grant(self.number, count)

    def _is_starving(self) -> bool:
        """Whether the client cannot go on without more room."""
        return self._room < _SMALL or self._charge > 0
