"""One call: the messages that the client sends, and the answers to it.

A client may send INITIAL_WINDOW bytes on a stream at any time. A larger message is received only
once the budget has room for all of it; until then the client waits. Small messages are covered by
the window, which opens again when the handler has taken them.
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
from rmqstore_spark.server.flight.received import ReceivedMessage
from rmqstore_spark.server.flight.status import EndedError, Status
from rmqstore_spark.server.flight.transport import Transport

__all__ = ["INITIAL_WINDOW", "MessageTooLargeError", "Stream"]

INITIAL_WINDOW: Final = 128 << 10
_SMALL: Final = INITIAL_WINDOW // 2
_AHEAD_BYTES: Final = 4 << 20
"""Maximum bytes that a stream receives ahead of its handler. A single message may be larger."""
_MOST_QUEUED: Final = 256
"""Maximum messages that a stream receives ahead of its handler. Empty ones use memory, but no
window."""
_PREFIX: Final = 5
_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 2.0
_LEAST_RATE: Final = 1 << 20
"""Least bytes per second of a message that was given room, while others wait for room."""


class MessageTooLargeError(Exception):
    """The client sent a message that is larger than the limit, or compressed."""


class Link(Protocol):
    """The connection of a call, as the call sees it.

    Attributes:
        transport: its socket.
        out: sends to the client.
    """

    transport: Transport
    out: Outbound

    def trust(self) -> None:
        """Mark the client as trusted: it may send as much as its calls are granted room for."""

    def hang_up(self) -> None:
        """End the connection."""

    def forget(self, stream: Stream) -> None:
        """Remove a call that is over."""


class Stream:
    """One call. The connection's thread receives; a handler's thread reads and sends.

    Args:
        connection: the call's connection.
        number: HTTP/2's number of the stream.
        headers: the call's headers.
        room: the room for messages that the window does not cover.
        most: maximum bytes of a message.
        window: bytes that may be sent to the client at first.

    Attributes:
        moved: when the client last sent a message or accepted bytes, in monotonic seconds.
        blocked_since: when an answer began to wait for the client, in monotonic seconds, or None.
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
        self._budget = room.small  # pays for the message that is being received
        self._most = most
        self._changed = threading.Condition()
        self._room = INITIAL_WINDOW
        self._refund = 0
        self._prefix = bytearray()
        self._target: U1 | None = None
        self._at = self._charge = 0
        self._since = 0.0
        self._prepaid = 0  # bytes still to come that were granted already
        self.blocked_since: float | None = None  # guarded by the connection
        self._early: bytearray | None = None  # bytes that wait for room
        self._wanted = 0
        self._queue: deque[ReceivedMessage] = deque()
        self._held = 0
        self._failure: Exception | None = None
        self._is_discarding = self._has_ended = False
        self._has_begun_answer = self._is_over = False

    # ---- the connection's thread ---------------------------------------------------------------

    def take_room(self, count: int) -> bool:
        """Count bytes that the client sends; return False if they exceed its room."""
        with self._changed:
            self._room -= count
            return self._room >= 0

    def room_for(self, count: int) -> memoryview | None:
        """Return the buffer for the next bytes of a large message, so that they are not copied."""
        with self._changed:
            if self._target is None or self._early is not None:
                return None
            return memoryview(self._target)[self._at : self._at + count]  # type: ignore[arg-type]

    def received(self, count: int) -> None:
        """Take bytes that were received into the buffer of `room_for`."""
        with self._changed:
            self.moved = time.monotonic()
            self._at += count
            self._complete()
        self._send_refund()

    def receive(self, data: memoryview) -> None:
        """Take bytes that were received."""
        with self._changed:
            self._feed(data)
        self._send_refund()

    def skip(self, count: int) -> None:
        """Take padding that was received."""
        with self._changed:
            self._refund += count
        self._send_refund()

    @property
    def has_ended(self) -> bool:
        """Whether the client has ended its messages."""
        return self._has_ended

    def end_messages(self) -> None:
        """Mark the end of the client's messages."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def fail(self, failure: Exception) -> None:
        """Make every read and send fail from now on."""
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
        self.connection.out.wake()

    # ---- a handler's thread --------------------------------------------------------------------

    def read(self, idle_seconds: float, room_seconds: float) -> ReceivedMessage | None:
        """Return the client's next message; None after the last.

        Args:
            idle_seconds: how long the client may send nothing.
            room_seconds: how long a large message may wait for room.

        Raises:
            EndedError: the client has gone.
            MessageTooLargeError: the message is larger than the limit, or compressed.
            OverBudgetError: there was no room for it in time, or the client was too slow to fill
                the room that others wait for.
            TimeoutError: the client sent nothing for `idle_seconds`.
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
        """Return the next message if it has arrived."""
        message = self._next()
        self._send_refund()
        return message

    def drain(self, idle_seconds: float) -> None:
        """Discard what the client still sends until it ends, or until the time is over.

        If a call ends while its client still writes, Flight's client drops answers that it has not
        read yet.
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
            parts: the parts of the message.
            seconds: how long the client may accept nothing.
            budget: the budget that the message draws on; a client that reads it slowly loses it
                when others wait for room.

        Raises:
            EndedError: the client has gone.
            TimeoutError: the client accepted nothing for `seconds`.
            OverBudgetError: others wait for the room that this stream takes.
        """
        size = sum(map(len, parts))
        head = b"\0" + size.to_bytes(4, "big")
        begins, self._has_begun_answer = not self._has_begun_answer, True
        self.connection.out.send_data(self, [head, *parts], begins, seconds, budget)

    @property
    def failure(self) -> Exception | None:
        """The reason why the stream has failed, or None."""
        return self._failure

    def check_blocked(self, seconds: float, sent: int, budget: Budget | None) -> None:
        """Check whether an answer may go on waiting for the client.

        Args:
            seconds: how long it has been sent.
            sent: bytes of it that the client has accepted.
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
        """End the call, and give back its room."""
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
        """Raise a new copy of the error that ended the stream.

        The traceback of a kept error would keep alive the local variables of all who raised it.
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
        """Allocate a message. If it is charged to the budget, let the client send all of it."""
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
        """Give back the room of all received messages, and the client's window."""
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
        """Grant the client as many bytes as were taken in, once they are many or it needs them."""
        with self._changed:
            count = self._refund
            if not count or (count < _SMALL and not self._is_starving()):
                return
            self._refund = 0
            self._room += count
        self.connection.out.grant(self.number, count)

    def _is_starving(self) -> bool:
        """Whether the client cannot continue without more room."""
        return self._room < _SMALL or self._charge > 0
