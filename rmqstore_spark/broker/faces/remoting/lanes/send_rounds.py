"""Lets sends to a DLedger group gather, so that those of many clients are one round of it.

A round of a group (a push to each peer, their flushes, the commit) costs about the same for one
message as for many, and a client that waits for an answer sends again when it has it. So what comes
during a round waits for its end, and then for those who are answered with it: as many as were there
at once. Nobody waits for long: other rounds begin if that one takes its time, and if clients do not
send again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from rmqstore_spark.remoting.connection import Request

_GATHER_S: Final = 0.002
"""How long the next round waits for clients that have just got their answers."""
_ROUND_S: Final = 0.01
"""After how long of a round what has come meanwhile begins another one."""
_MOST_BYTES: Final = 256 << 10
"""Bytes of requests that wait for nothing: a round of more takes longer for each."""


class SendRounds:
    """Requests that wait for their round. Use it in the running event loop, but for `close`.

    Args:
        begin: stores the messages of requests; it calls `began` if they are answered later.
    """

    def __init__(self, begin: Callable[[Sequence[Request]], None]) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Request] = []
        self._size = 0
        self._open = 0  # requests that are stored, and have no answer
        self._most = 0  # that were open or waited at once, since a round began
        self._expected = 0  # so many are worth a wait
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together: they begin a round, now or soon."""
        self._waiting += requests
        self._size += sum(request.command.size for request in requests)
        self._most = max(self._most, self._open + len(self._waiting))
        self._look()

    def began(self, count: int) -> None:
        """Take note that so many requests are stored, and are answered later."""
        self._open += count

    def ended(self, count: int) -> None:
        """Take note that so many of them are answered."""
        self._open -= count
        if not self._open:
            self._expected = self._most
            self._stop_timer()
            self._loop.call_soon(self._look)  # once the answers are written

    def begin(self) -> None:
        """Begin a round with what waits."""
        self._stop_timer()
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            self._begin(waiting)
            self._most = self._open

    def close(self) -> None:
        """Wait in another thread until what waits is stored; nothing waits from now on."""
        done = threading.Event()

        def end() -> None:
            self._is_closing = True
            try:
                self.begin()
            finally:
                done.set()

        with suppress(RuntimeError):  # the loop has ended, and with it all connections
            self._loop.call_soon_threadsafe(end)
            done.wait()

    def _look(self) -> None:
        if not self._waiting:
            return
        is_over = not self._open and len(self._waiting) >= self._expected
        if is_over or self._size >= _MOST_BYTES or self._is_closing:
            self.begin()
        elif self._timer is None:
            seconds = _ROUND_S if self._open else _GATHER_S
            self._timer = self._loop.call_later(seconds, self._time_over)

    def _time_over(self) -> None:
        self._timer = None
        self._expected = 0
        self.begin()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
