"""Answers sends to a store in a DLedger group when a quorum has their messages.

Nobody waits for that: the next messages are stored meanwhile. The answers are written in the event
loop, all that are due together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

from rmqstore_spark.engine.append.later_puts import LaterPuts


class LaterAnswers:
    """Has the outcomes of puts told in the running event loop, until it is closed.

    Args:
        puts: the puts.
    """

    def __init__(self, puts: LaterPuts) -> None:
        self._puts = puts
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_called = self._is_closing = False
        self._is_done = threading.Event()
        puts.watch(self)

    def close(self) -> None:
        """Wait in another thread until all outcomes are told. No puts may follow."""
        self._is_closing = True
        self.changed()
        self._is_done.wait()
        self._puts.watch(None)

    def changed(self) -> None:
        """Have the outcomes told that may be known."""
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop has ended, and with it all connections
                self._loop.call_soon_threadsafe(self._tell)

    def waits(self) -> None:
        """See to the time of a put, unless that of an earlier one is seen to: it is before that."""
        if self._timer is None:
            self.changed()

    def _tell(self) -> None:
        self._is_called = False
        ends = self._puts.take()
        if ends is None:
            if self._is_closing:
                self._is_done.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(max(ends - time.monotonic(), 0), self._time_over)

    def _time_over(self) -> None:
        self._timer = None  # first: who comes after the look calls again
        self._tell()
