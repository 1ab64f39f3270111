"""The calls that are under way: how many, and how long they have waited for their client.

Every call takes a thread for as long as it lasts, so there is a number that they may not exceed.
Where it is reached, a stream whose client does nothing gives way to a new one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.service.flight.stream import Stream

__all__ = ["Call", "Calls", "EvictedError", "TooManyCallsError"]

_LEAST_LOOK: Final = 0.05
_EVICTABLE_SECONDS: Final = 1.0


class TooManyCallsError(Exception):
    """There is no room for another call."""


class EvictedError(Exception):
    """A stream that was idle made room for another one."""


class Call:
    """One call.

    Attributes:
        stream: its messages.
        lasts: it is a stream of data, and can last long.
        waiting_since: monotonic seconds since which it waits for its client; None while it works.
    """

    def __init__(self, stream: Stream, lasts: bool) -> None:
        self._lock = threading.Lock()
        self._at_work = 0  # threads
        self.stream = stream
        self.lasts = lasts
        self.waiting_since: float | None = time.monotonic()

    @property
    def peer(self) -> str:
        """Whose call it is, for messages to people."""
        return self.stream.connection.transport.peer

    @property
    def identity(self) -> str:
        """Whose call it is, by the client's certificate; empty without one."""
        return self.stream.connection.transport.identity

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the time in which it works."""
        with self._lock:
            self._at_work += 1
            self.waiting_since = None
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self.waiting_since = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the time in which it waits for its client, although it is at work."""
        with self._lock:
            self.waiting_since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.waiting_since = None

    def idle_seconds(self) -> float:
        """How long its client has neither sent nor taken anything that it waits for."""
        since = self.waiting_since
        return 0.0 if since is None else time.monotonic() - max(since, self.stream.moved)


class Calls:
    """All calls under way. Thread-safe.

    Args:
        most_streams: how many streams there may be, and as many other calls besides.
    """

    def __init__(self, most_streams: int) -> None:
        self.is_stopping = False
        self._most = most_streams
        self._changed = threading.Condition()
        self._calls: set[Call] = set()

    def begin(self, stream: Stream, lasts: bool) -> Call:
        """Count a call; an idle one gives way where there is no room.

        Raises:
            TooManyCallsError: there is no room, and none is idle.
        """
        evicted = None
        with self._changed:
            alike = [call for call in self._calls if call.lasts == lasts]
            if len(alike) >= self._most:
                evicted = _most_idle(alike)
                if evicted is None:
                    raise TooManyCallsError
                self._calls.discard(evicted)
            call = Call(stream, lasts)
            self._calls.add(call)
        if evicted is not None:
            evicted.stream.fail(EvictedError())
        return call

    def end(self, call: Call) -> None:
        """A call is over."""
        with self._changed:
            self._calls.discard(call)
            self._changed.notify_all()

    def all(self) -> list[Call]:
        """The calls under way."""
        with self._changed:
            return list(self._calls)

    def wait_until(self, condition: Callable[[list[Call]], bool], seconds: float) -> bool:
        """Wait until the calls are as they should be; tells whether they are."""
        deadline = time.monotonic() + seconds
        while not condition(self.all()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, _LEAST_LOOK))
        return True


def _most_idle(calls: list[Call]) -> Call | None:
    """The call that gives way: of the connection with the most, the one that is idle longest."""
    idle = [(call.idle_seconds(), call) for call in calls]
    idle = [(seconds, call) for seconds, call in idle if seconds >= _EVICTABLE_SECONDS]
    if not idle:
        return None
    of_connection = Counter(id(call.stream.connection) for call in calls)
    return max(idle, key=lambda one: (of_connection[id(one[1].stream.connection)], one[0]))[1]
