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

from rmqstore_spark.server.flight.stream import Stream

__all__ = ["Call", "Calls", "EvictedError", "TooManyCallsError"]

_LEAST_LOOK: Final = 0.05
_PUT_SECONDS: Final = 1.0
_STAGE_SECONDS: Final = 10.0
"""How long a stream is idle before another may have its place. A put stream begins again with the
next put; with a stage, a task's work is lost."""
_SHARE: Final = 8
"""Streams of a connection that has more of them than another one gives way even if it is busy."""


class TooManyCallsError(Exception):
    """There is no room for another call."""


class EvictedError(Exception):
    """A stream that was idle made room for another one."""


class Call:
    """One call.

    Attributes:
        stream: its messages.
        lasts: it is a stream of data, and can last long.
        is_precious: it holds work that would be lost with it.
    """

    def __init__(self, stream: Stream, lasts: bool) -> None:
        self.stream = stream
        self.lasts = lasts
        self.is_precious = False
        self._reading_since: float | None = time.monotonic()

    @property
    def peer(self) -> str:
        """Whose call it is, for messages to people."""
        return self.stream.connection.transport.peer

    @property
    def identity(self) -> str:
        """Whose call it is, by the client's certificate; empty without one."""
        return self.stream.connection.transport.identity

    @property
    def waiting_since(self) -> float | None:
        """Monotonic seconds since which it waits for its client; None while it works."""
        return self._reading_since or self.stream.blocked_since

    @property
    def may_give_way(self) -> bool:
        """Whether it has been idle for long enough that another may have its place."""
        return self.idle_seconds() >= (_STAGE_SECONDS if self.is_precious else _PUT_SECONDS)

    def begin(self) -> None:
        """It has a thread now, and works."""
        self._reading_since = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Mark the time in which it waits for what its client sends."""
        self._reading_since = time.monotonic()
        try:
            yield
        finally:
            self._reading_since = None

    def idle_seconds(self) -> float:
        """How long its client has neither sent nor taken anything that it waits for."""
        since = self.waiting_since
        return 0.0 if since is None else time.monotonic() - max(since, self.stream.moved)


class Calls:
    """All calls under way. Thread-safe.

    Args:
        most_streams: how many streams there may be, and as many other calls besides.

    Attributes:
        is_stopping: no new calls are taken.
        ended: how many calls have ended.
    """

    def __init__(self, most_streams: int) -> None:
        self.is_stopping = False
        self.ended = 0
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
                evicted = _to_give_way(alike, stream)
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
            self.ended += 1
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


def _to_give_way(calls: list[Call], stream: Stream) -> Call | None:
    """The call whose place a new stream gets.

    A connection with many more streams than the new one's gives up one of them. Else it is the one
    that has been idle for longest, if that is long.
    """
    of_connection = Counter(id(call.stream.connection) for call in calls)
    most, count = of_connection.most_common(1)[0]
    if count > _SHARE and count > of_connection[id(stream.connection)] + 1:
        calls = [call for call in calls if id(call.stream.connection) == most]
        return max(calls, key=Call.idle_seconds)
    idle = [call for call in calls if call.may_give_way]
    return max(idle, key=Call.idle_seconds) if idle else None
