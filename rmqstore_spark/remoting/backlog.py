"""The requests of a connection that are not finished, from both ends, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import MAX_FRAME


@dataclass(frozen=True)
class Limits:
    """The bounds of a server's connections, or of a client's one.

    Attributes:
        frame: most bytes of a frame with its length.
        connections: most connections of a server; others are closed at once.
        held: most bytes of requests in memory, over all connections of a server; and half of that
            is the most of answers that the other ends do not read. See `room` and `answers`.
        connection_held: most bytes of requests of a connection that are being handled; with more,
            it is not read. Answers that its other end does not read stop it sooner.
        group: most requests, of all connections, that are handled before answers are written.
        in_flight: most requests of a connection that are being handled; with more, it is not
            read. Also the most that this side asks at a time.
        idle_seconds: a connection on which nothing comes or goes for this time is closed.
        frame_seconds: a connection is ended on which a frame takes longer to arrive.
        write_seconds: a connection is ended whose other end does not read answers for this time.
    """

    frame: int = MAX_FRAME
    connections: int = 20_000
    held: int = 256 << 20
    connection_held: int = 64 << 20
    group: int = 128
    in_flight: int = 65_535
    idle_seconds: float = 120.0
    frame_seconds: float = 60.0
    write_seconds: float = 30.0


_MOST_TRIED: Final = 8
"""Most postponed requests that are tried at once."""


_MOST_TAKEN: Final = 1 << 20
"""Bytes of requests that are taken at once, but for the last of them."""


class Holding(Protocol):
    """What holds memory."""

    @property
    def held(self) -> int:
        """Bytes that it holds."""


_H = TypeVar("_H", bound=Holding)


class Backlog(Generic[_H]):
    """Requests: first they wait, then they are handled, then they are finished.

    Args:
        limits: of the connection.

    Attributes:
        waiting: those that wait to be handled, the next one first.
        postponed: those that wait until there is room for their answers.
        held: bytes that all requests hold.
        is_full: whether no more may be handled now.
    """

    def __init__(self, limits: Limits) -> None:
        self._most_waiting = limits.group
        self._most = limits.in_flight
        self._most_bytes = limits.connection_held
        self.waiting: list[_H] = []  # both are short, and a deque costs 600 bytes a connection
        self.postponed: list[_H] = []
        self.held = 0
        self.is_full = False
        self._handled = 0
        self._handled_bytes = 0

    @property
    def may_grow(self) -> bool:
        """Whether more requests should be read."""
        return (
            not self.is_full
            and len(self.waiting) < self._most_waiting
            and self.held < self._most_bytes
            and (not self.postponed or len(self.postponed) < self._most)
        )

    @property
    def is_empty(self) -> bool:
        """Whether all requests are finished."""
        return not self.waiting and not self.postponed and not self._handled

    def add(self, request: _H) -> None:
        """Add a request that has arrived."""
        self.waiting.append(request)
        self.held += request.held

    def add_first(self, request: _H) -> None:
        """Add a request that was taken a moment ago."""
        self.waiting.insert(0, request)
        self.held += request.held

    def postpone(self, request: _H) -> None:
        """Add a request that was taken before, and for whose answer there was no room."""
        self.postponed.append(request)
        self.held += request.held

    def take_postponed(self, most: int) -> list[_H]:
        """Return the next requests that were postponed: a few; the first may fill the room."""
        count = min(most, _MOST_TRIED, len(self.postponed))
        group, self.postponed[:count] = self.postponed[:count], []
        self._count(len(group), sum(request.held for request in group))
        return group

    def take(self, most: int) -> list[_H]:
        """Return the next requests to be handled, until it is full, or they are large together."""
        group: list[_H] = []
        size = 0
        if len(self.waiting) == 1 and most > 0 and not self.is_full:  # as nearly always
            group, self.waiting = self.waiting, group
            self._count(1, group[0].held)
            return group
        most = min(most, self._most - self._handled)
        most_bytes = min(_MOST_TAKEN, self._most_bytes - self._handled_bytes)
        for request in self.waiting:
            if len(group) >= most or size >= most_bytes:
                break
            size += request.held
            group.append(request)
        del self.waiting[: len(group)]
        self._count(len(group), size)
        return group

    def finished(self, request: _H) -> None:
        """Take note that a request was handled."""
        self.finished_all(1, request.held)

    def finished_all(self, count: int, held: int) -> None:
        """Take note that requests were handled.

        Args:
            count: how many.
            held: bytes that they hold.
        """
        self.held -= held
        self._handled -= count
        self._handled_bytes -= held
        if self.is_full:
            self._count(0, 0)

    def forget_waiting(self) -> list[_H]:
        """Drop the requests that wait, and return them."""
        dropped = [*self.waiting, *self.postponed]
        self.waiting.clear()
        self.postponed.clear()
        self.held = self._handled_bytes
        return dropped

    def _count(self, count: int, held: int) -> None:
        """Count requests that are being handled."""
        self._handled = handled = self._handled + count
        self._handled_bytes = held = self._handled_bytes + held
        self.is_full = handled >= self._most or held >= self._most_bytes


Told: TypeAlias = Callable[[Command | ServiceError], object]
"""Takes the answer to a request, or why there is none."""


class UnheardError(ServiceError):
    """A plain connection was closed before anything came over it: the other end may want TLS."""


class PendingCalls:
    """Requests by their number, which their answers repeat."""

    def __init__(self) -> None:
        self._opaque = 0
        self._has_answered = False
        self._asked: dict[int, tuple[Told, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def number(self, command: Command) -> None:
        """Give a request its number."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque

    def answer_of(self, command: Command, peer: str, seconds: float) -> asyncio.Future[Command]:
        """Return the answer to come of a request that was sent.

        It is a ServiceError if no answer comes in time, or the connection is closed.

        Args:
            command: the request.
            peer: address of the other end, for the error.
            seconds: how long an answer may take.
        """
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def settle(found: Command | ServiceError) -> None:
            if answer.done():
                return
            if isinstance(found, ServiceError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self.tell(command, peer, seconds, settle)
        return answer

    def tell(self, command: Command, peer: str, seconds: float, told: Told) -> None:
        """Have a function called with the answer to a request that was sent; see `answer_of`."""
        number = command.opaque

        def give_up() -> None:
            del self._asked[number]
            text = f"{peer} did not answer request {command.code} within {seconds:.3g} s."
            told(ServiceError(text))

        self._asked[number] = told, asyncio.get_running_loop().call_later(seconds, give_up)

    def forget(self, command: Command) -> None:
        """Forget a request for whose answer nobody waits any more."""
        _, timer = self._asked.pop(command.opaque, (None, None))
        if timer is not None:
            timer.cancel()

    def arrived(self, answer: Command) -> None:
        """Give an answer to who waits for it; nobody does if it is late."""
        self._has_answered = True
        told, timer = self._asked.pop(answer.opaque, (None, None))
        if timer is not None:
            timer.cancel()
        if told is not None:
            told(answer)

    def fail(self, peer: str, *, may_want_tls: bool = False) -> None:
        """End all waiting: the connection is closed.

        Args:
            peer: the other end.
            may_want_tls: whether this side called it, without TLS.
        """
        error = ServiceError(f"The connection to {peer} was closed.")
        if may_want_tls and not self._has_answered:
            error = UnheardError(f"{error} It may accept only TLS connections.")
        asked, self._asked = self._asked, {}
        for told, timer in asked.values():
            timer.cancel()
            told(error)
