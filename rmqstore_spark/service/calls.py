"""The calls that are under way: how many, how long they have waited for their client, and whose.

Every call takes a thread for as long as it lasts, a stream of blocks two or three. So there is a
number that they may not exceed, and those whose client does nothing are ended after a while.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.service.connections import Peer, cut, peers

__all__ = ["Call", "Calls", "Reaper", "TooManyCallsError"]

_log = logging.getLogger(__name__)

_LEAST_LOOK: Final = 0.05
_LONGEST_LOOK: Final = 1.0


class TooManyCallsError(Exception):
    """There is no room for another call."""


class Call:
    """One call.

    Attributes:
        number: unlike that of any other.
        is_stream: it can last long.
        peer: whose it is; None until it has reached its handler.
        process: the client's process, as it says.
        waiting_since: monotonic seconds since which it waits for its client; None while it works.
    """

    def __init__(self, number: int, is_stream: bool, process: int) -> None:
        self._lock = threading.Lock()
        self._at_work = 0  # threads
        self.number = number
        self.is_stream = is_stream
        self.process = process
        self.peer: Peer | None = None
        self.waiting_since: float | None = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the time in which a thread that is at work waits: for the client, or another one."""
        self.end_work()
        try:
            yield
        finally:
            self.begin_work()

    def begin_work(self) -> None:
        """A thread begins to work for it."""
        with self._lock:
            self._at_work += 1
            self.waiting_since = None

    def end_work(self) -> None:
        """A thread has ended its work; without any, it waits for its client."""
        with self._lock:
            self._at_work -= 1
            if not self._at_work:
                self.waiting_since = time.monotonic()


class Calls:
    """All calls under way. Thread-safe.

    Args:
        most_streams: how many streams there may be, and as many other calls besides.
    """

    def __init__(self, most_streams: int) -> None:
        self.is_stopping = False
        self._most = most_streams
        self._changed = threading.Condition()
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count()

    def begin(self, is_stream: bool, process: int) -> Call:
        """Count a call.

        Raises:
            TooManyCallsError: there is no room for it.
        """
        with self._changed:
            alike = sum(call.is_stream == is_stream for call in self._calls.values())
            if alike >= self._most:
                raise TooManyCallsError
            call = Call(next(self._numbers), is_stream, process)
            self._calls[call.number] = call
            return call

    def end(self, call: Call) -> None:
        """A call is over."""
        with self._changed:
            self._calls.pop(call.number, None)
            self._changed.notify_all()

    def all(self) -> list[Call]:
        """The calls under way."""
        with self._changed:
            return list(self._calls.values())

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


class Reaper:
    """Ends connections whose streams all wait for a client that does nothing.

    Args:
        calls: that are under way.
        port, path: where the process listens.
        idle_seconds: how long a stream may wait.
        most_connections: with more than these, those without a call are ended.
    """

    def __init__(
        self,
        calls: Calls,
        port: int | None,
        path: str | None,
        idle_seconds: float,
        most_connections: int,
    ) -> None:
        self._calls = calls
        self._port, self._path = port, path
        self._idle = idle_seconds
        self._most = most_connections
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-reaper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def cut_calls(self) -> None:
        """End the connections of all calls under way, and no others where those are known."""
        known = {call.peer for call in self._calls.all()}
        connected = peers(self._port, self._path)
        doomed = {peer for peer in known if peer is not None}
        if not doomed <= connected or None in known:
            doomed = connected
        cut(doomed, self._port, self._path)

    def _run(self) -> None:
        every = min(max(self._idle / 4, _LEAST_LOOK), _LONGEST_LOOK)
        is_told = False
        while not self._stop.wait(every):
            try:
                self._look()
                is_told = False
            except OSError as error:  # too many open files, for one
                if not is_told:
                    _log.warning("Idle connections cannot be looked for: %s", error)
                is_told = True

    def _look(self) -> None:
        calls = self._calls.all()
        connected = peers(self._port, self._path)
        doomed = self._idle_peers(calls, connected)
        known = {call.peer for call in calls}
        late = any(call.peer is None and self._is_idle(call) for call in calls)
        if late or len(connected) > self._most:
            # A call that says nothing after its headers never reaches a handler, and whose it is
            # remains unknown: all connections without a known call are suspect. An honest client
            # just connects again.
            doomed |= connected - known
        if doomed:
            count = cut(doomed, self._port, self._path)
            _log.info("Ended %d connections that had been idle, or were too many.", count)

    def _idle_peers(self, calls: list[Call], connected: set[Peer]) -> set[Peer]:
        """Those all of whose calls wait in vain."""
        idle: dict[Peer, bool] = {}
        for call in calls:
            if call.peer is not None:
                idle[call.peer] = idle.get(call.peer, True) and self._is_idle(call)
        found = {peer for peer, is_idle in idle.items() if is_idle}
        named = {peer for peer in idle if peer in connected}
        # A client of the unix socket that does not say who it is, or not the truth.
        unknown = {peer for peer in connected if not peer.address} - named
        for peer in found - connected:
            if not peer.address:
                found |= unknown
        return found

    def _is_idle(self, call: Call) -> bool:
        since = call.waiting_since
        return since is not None and time.monotonic() - since > self._idle
