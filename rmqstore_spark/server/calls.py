"""The calls in progress: how many there are, and how long they have waited for their client.

Each call occupies a thread, so their number is limited. At the limit, a stream whose client is idle
is ended to make room for a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.connections.connection import ClientConnection

_LEAST_LOOK: Final = 0.05
_PUT_SECONDS: Final = 1.0
_STAGE_SECONDS: Final = 10.0
"""How long a stream must be idle before another may take its place. A client opens a new put stream
with its next put; the loss of a stage is the loss of a task's work.
"""


class TooManyCallsError(Exception):
    """There is no room for another call."""


class EvictedError(Exception):
    """An idle stream was ended to make room for another."""


class Call:
    """One call.

    Attributes:
        connection: the connection with its requests.
        lasts: whether it is a stream of data, which can last long.
        is_precious: whether it holds work that would be lost with it.
    """

    def __init__(self, connection: ClientConnection, lasts: bool) -> None:
        self.connection = connection
        self.lasts = lasts
        self.is_precious = False
        self._reading_since: float | None = None

    @property
    def peer(self) -> str:
        """The client's address or process, for messages to people."""
        return self.connection.transport.peer

    @property
    def caller(self) -> Caller:
        """The client."""
        return self.connection.caller

    @property
    def waiting_since(self) -> float | None:
        """When the call began to wait for its client, in monotonic seconds; None while it works."""
        return self._reading_since or self.connection.blocked_since

    @property
    def may_give_way(self) -> bool:
        """Whether the call has been idle long enough to be ended for another."""
        return self.idle_seconds() >= (_STAGE_SECONDS if self.is_precious else _PUT_SECONDS)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Mark the time during which the call waits for data from its client."""
        self._reading_since = time.monotonic()
        try:
            yield
        finally:
            self._reading_since = None

    def works(self) -> None:
        """Mark that what came is being handled, in the time of `reading`."""
        self._reading_since = None

    def waits(self) -> None:
        """Mark that the call waits again, in the time of `reading`."""
        self._reading_since = time.monotonic()

    def idle_seconds(self) -> float:
        """Return how long the client has neither sent nor taken what the call waits for."""
        since = self.waiting_since
        return 0.0 if since is None else time.monotonic() - max(since, self.connection.moved)


class Calls:
    """All calls in progress. Thread-safe.

    Args:
        most_streams: maximum number of streams, and, counted separately, of other calls.

    Attributes:
        is_stopping: whether new calls are refused.
        ended: number of calls that have ended.
    """

    def __init__(self, most_streams: int) -> None:
        self.is_stopping = False
        self.ended = 0
        self._most = most_streams
        self._changed = threading.Condition()
        self._calls: set[Call] = set()

    def begin(self, connection: ClientConnection, lasts: bool) -> Call:
        """Register a call; if there is no room, end an idle one.

        Raises:
            TooManyCallsError: there is no room, and no call is idle.
        """
        with self._changed:
            alike = [call for call in self._calls if call.lasts == lasts]
            if len(alike) >= self._most:
                evicted = _to_give_way(alike)
                if evicted is None:
                    raise TooManyCallsError
                self._calls.discard(evicted)
                evicted.connection.fail(EvictedError())  # it can begin no other call meanwhile
            call = Call(connection, lasts)
            self._calls.add(call)
        return call

    def end(self, call: Call) -> None:
        """Remove a call that is over."""
        with self._changed:
            self.ended += 1
            self._calls.discard(call)
            self._changed.notify_all()

    def all(self) -> list[Call]:
        """Return the calls in progress."""
        with self._changed:
            return list(self._calls)

    def wait_until(self, condition: Callable[[list[Call]], bool], seconds: float) -> bool:
        """Wait until the calls satisfy a condition; return whether they do."""
        deadline = time.monotonic() + seconds
        while not condition(self.all()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, _LEAST_LOOK))
        return True


def _to_give_way(calls: list[Call]) -> Call | None:
    """Return the call that has been idle longest, if that is long enough to end it for another."""
    idle = [call for call in calls if call.may_give_way]
    return max(idle, key=Call.idle_seconds) if idle else None
