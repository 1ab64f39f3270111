"""Turns of the event loop: what arrived in one is handled as one group, and answered together.

An event loop first reads from all sockets that have data, and then runs what was scheduled. So a
function that the first of them schedules finds the requests of all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)
_R_contra = TypeVar("_R_contra", contravariant=True)


_LARGE: Final = 64 << 10
_MOST_BYTES: Final = 4 << 20
"""Bytes of requests that are handled in a turn, but for the last of them: 50,000 topics of a broker
are read for a tenth of a second."""


class RequestSource(Protocol[_R_co]):
    """A connection on which requests arrive."""

    @property
    def is_ready(self) -> bool:
        """Whether it has a request that may be handled now."""

    @property
    def next_size(self) -> int:
        """Bytes of the request that comes next."""

    def take(self, most: int) -> Sequence[_R_co]:
        """Return requests that may be handled now, and no longer have them."""

    def flush(self) -> None:
        """Write what was sent."""


class Taker(Protocol[_R_contra]):
    """Handles requests."""

    def requests(self, requests: Sequence[_R_contra]) -> None:
        """Handle requests that arrived together, on any connections."""


class Turns(Generic[_R]):
    """The turns of the running event loop, for connections with one service.

    Args:
        taker: handles the requests.
        most: most requests that are handled as one group. Connections share it evenly.
    """

    def __init__(self, taker: Taker[_R], most: int) -> None:
        self._taker = taker
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ready: dict[RequestSource[_R], None] = {}
        self._unwritten: dict[RequestSource[_R], None] = {}
        self._is_due = False
        self._from_threads: deque[Callable[[], None]] = deque()
        self._is_woken = False

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the thread of the event loop."""
        return threading.get_ident() == self._thread

    def ready(self, source: RequestSource[_R]) -> None:
        """Take note that a connection has requests that may be handled."""
        self._ready[source] = None
        if not self._is_due:
            self._come()

    def unwritten(self, source: RequestSource[_R]) -> None:
        """Take note that a connection has something to write."""
        self._unwritten[source] = None
        if not self._is_due:
            self._come()

    def forget(self, source: RequestSource[_R]) -> None:
        """Forget a connection that has ended."""
        self._ready.pop(source, None)
        self._unwritten.pop(source, None)

    def in_loop(self, act: Callable[[], None]) -> None:
        """Do something in the thread of the event loop: now, if this is it. From any thread."""
        if self.is_here:
            act()
            return
        self._from_threads.append(act)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended, and with it all connections
                self._loop.call_soon_threadsafe(self._act)

    def take(self) -> None:
        """Take a turn: hand requests to the service, and write what was sent."""
        self._is_due = True
        group = self._group()
        try:
            if group:
                self._taker.requests(group)
        finally:
            while self._unwritten:
                self._unwritten.popitem()[0].flush()
            self._is_due = False
            if self._ready:
                self._come()

    def _come(self) -> None:
        self._is_due = True
        self._loop.call_soon(self.take)

    def _group(self) -> list[_R]:
        group: list[_R] = []
        if not self._ready:
            return group
        if len(self._ready) == 1:
            ((source, _),) = self._ready.items()
            self._ready.clear()
            group += source.take(self._most)
            if source.is_ready:
                self._ready[source] = None
            return group
        share = max(1, self._most // len(self._ready))
        left = _MOST_BYTES
        # Small requests come first: what is large may take long. But only among those whose turn it
        # is, or large ones would wait for as long as enough others have small ones.
        sources = list(islice(self._ready, self._most))
        sizes = [source.next_size for source in sources]
        if max(sizes) > _LARGE:
            sources.sort(key=lambda each: each.next_size > _LARGE)
            sizes = [source.next_size for source in sources]
        for source, size in zip(sources, sizes, strict=True):
            if len(group) >= self._most or left <= 0:
                break
            left -= size
            del self._ready[source]
            group += source.take(min(share, self._most - len(group)))
            if source.is_ready:
                self._ready[source] = None  # at the end: the others come first
        return group

    def _act(self) -> None:
        # Not those that come meanwhile: a busy thread would keep the loop from all else.
        self._is_woken = False
        for _ in range(len(self._from_threads)):
            self._from_threads.popleft()()
