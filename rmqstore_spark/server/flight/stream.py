"""One call: the messages that the client sends, and the answers to it."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from rmqstore_spark.server.budget import Budget, OverBudgetError, Room
from rmqstore_spark.server.flight.frames import ErrorCode
from rmqstore_spark.server.flight.inbox import Inbox, is_too_slow
from rmqstore_spark.server.flight.outbound import Outbound
from rmqstore_spark.server.flight.received import ReceivedMessage
from rmqstore_spark.server.flight.status import EndedError, Status
from rmqstore_spark.server.flight.transport import Transport

__all__ = ["Stream"]

_LOOK_SECONDS: Final = 0.5


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
        self._changed = threading.Condition()
        self._inbox = Inbox(room, most)  # guarded by _changed
        self.blocked_since: float | None = None  # guarded by the connection
        self._failure: Exception | None = None
        self._has_ended = False
        self._has_begun_answer = self._is_over = False

    # ---- the connection's thread ---------------------------------------------------------------

    def take_room(self, count: int) -> bool:
        """Count bytes that the client sends; return False if they exceed its room."""
        with self._changed:
            return self._inbox.take_room(count)

    def room_for(self, count: int) -> memoryview | None:
        """Return the buffer for the next bytes of a large message, so that they are not copied."""
        with self._changed:
            return self._inbox.room_for(count)

    def received(self, count: int) -> None:
        """Take bytes that were received into the buffer of `room_for`."""
        with self._changed:
            self.moved = time.monotonic()
            if self._inbox.received(count):
                self._changed.notify_all()
        self._send_refund()

    def receive(self, data: memoryview) -> None:
        """Take bytes that were received."""
        with self._changed:
            if self.failure is None and self._inbox.feed(data):
                self.moved = max(self.moved, self._inbox.moved)
                self._changed.notify_all()
        self._send_refund()

    def skip(self, count: int) -> None:
        """Take padding that was received."""
        with self._changed:
            self._inbox.skip(count)
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
            if self.failure is None:
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
                wanted = self._inbox.wanted
                if self._has_ended and not self._inbox and not wanted:
                    return None
                if not wanted and not self._inbox:
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
            self._inbox.discard()
        self._send_refund()
        deadline = time.monotonic() + idle_seconds
        with self._changed:
            while not (self._has_ended or self.failure) and time.monotonic() < deadline:
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
        return self._failure or self._inbox.refusal

    def check_blocked(self, seconds: float, sent: int, budget: Budget | None) -> None:
        """Check whether an answer may keep waiting for the client.

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
        if not is_too_slow(seconds, sent):
            return
        if (budget is not None and budget.is_contended) or self._inbox.is_contended:
            raise OverBudgetError

    def finish(self, status: Status) -> None:
        """End the call, and give back its room."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            is_gone = isinstance(self.failure, EndedError)
            self._failure = self.failure or EndedError("the call is over")
            self._inbox.discard()
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
        failure = self.failure
        if failure is not None:
            raise type(failure)(*failure.args)

    def _next(self) -> ReceivedMessage | None:
        with self._changed:
            message = self._inbox.take()
            if message is not None and self.failure is None:
                self._inbox.proceed()
                self.moved = max(self.moved, self._inbox.moved)
            return message

    def _check_pace(self, idle_seconds: float) -> None:
        """Check whether the client sends fast enough. Needs the lock."""
        now = time.monotonic()
        if self._inbox or self._has_ended or self.failure is not None:
            return
        if now - self.moved > idle_seconds:
            raise TimeoutError
        if self._inbox.is_filled_too_slowly(now):
            raise OverBudgetError

    def _make_room(self, size: int, seconds: float) -> None:
        budget = self._inbox.budget
        budget.take(size, seconds)
        with self._changed:
            is_used = self.failure is None and self._inbox.give_room(size)
        if not is_used:
            budget.give_back(size)
            return
        self._send_refund()

    def _send_refund(self) -> None:
        with self._changed:
            count = self._inbox.take_refund()
        if count:
            self.connection.out.grant(self.number, count)
