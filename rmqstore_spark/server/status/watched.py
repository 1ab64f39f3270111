"""The stores of the pages: their figures of now, and what these were."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.server.status.history import History
from rmqstore_spark.server.stores.served import ServedStore

_log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 10.0
_TICK_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 0.2
"""Figures that took longer to make are not made while a reader waits for a page."""
_MOST_SHARE: Final = 0.05
"""Of a core, for such figures while pages are opened."""
_IDLE_SHARE: Final = 0.005
"""The same, while none is."""
_FAILED: Final = "FAILED"


class Figures(NamedTuple):
    """The figures of a store.

    Attributes:
        stats: see `ServedStore.stats`. Of a store that cannot be read, there is only `state`,
            FAILED, and `failure`.
        taken: when they were made, in seconds since the epoch.
    """

    stats: Mapping[str, Any]
    taken: float


class WatchedStore:
    """A store, and its figures. Thread-safe.

    Those of a store of others with thousands of queues take seconds to make: its pages show the
    last ones, and the next ones are made in the background.

    Args:
        store: the store.
        fresh_seconds: how old its figures may be; who opens many pages asks for them once.
        count: how many stores share what making figures may cost.
    """

    def __init__(self, store: ServedStore, fresh_seconds: float, count: int = 1) -> None:
        self.store = store
        self._count = count
        self._fresh_seconds = fresh_seconds
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._figures = Figures({}, 0.0)
        self._made = float("-inf")
        self._took = 0.0
        self._sampled = float("-inf")
        self._is_wanted = False
        self._history = History()

    def figures(self) -> Figures:
        """Return the store's figures."""
        with self._lock:
            self._is_wanted = True
            is_slow = self._took > _SLOW_SECONDS and bool(self._figures.stats)
            if is_slow or self._is_fresh():
                return self._figures
        return self._make()

    def sample(self) -> None:
        """Add the figures of now to the history."""
        with self._lock:
            self._sampled = time.monotonic()
        figures = self._make()
        with self._lock:
            self._history.add(self._made, figures.stats)

    def is_due(self, seconds: float) -> bool:
        """Return whether a sample is due.

        Args:
            seconds: how long after the last one, unless that took too long.
        """
        with self._lock:
            share = _MOST_SHARE if self._is_wanted else _IDLE_SHARE
            wait = max(seconds, self._took * self._count / share)
            return time.monotonic() - self._sampled >= wait

    def look_back(self, look: Callable[[History], Any]) -> Any:
        """Call a function with the history, which it must not keep; return what it returns."""
        with self._lock:
            return look(self._history)

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._made <= self._fresh_seconds

    def _make(self) -> Figures:
        with self._making:
            with self._lock:
                if self._is_fresh():  # another thread has made them meanwhile
                    return self._figures
                self._is_wanted = False
            began, now = time.monotonic(), time.time()
            try:
                stats: Mapping[str, Any] = self.store.stats()
            except (RmqStoreError, OSError) as error:
                _log.debug("%s cannot be read", self.store.name, exc_info=True)
                stats = {"state": _FAILED, "failure": str(error)}
            with self._lock:
                self._figures = Figures(stats, now)
                self._made = time.monotonic()
                self._took = self._made - began
                return self._figures


class Sampling:
    """Takes samples of stores until it is closed, in a thread of its own.

    Args:
        stores: the stores.
        seconds: between two samples, unless they take too long.
    """

    def __init__(self, stores: Sequence[WatchedStore], seconds: float = SAMPLE_SECONDS) -> None:
        self._stores = stores
        self._seconds = seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a sample that is being taken."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        tick = min(_TICK_SECONDS, self._seconds)
        while not self._closing.is_set():
            for store in self._stores:
                if store.is_due(self._seconds):
                    self._sample(store)
            self._closing.wait(tick)

    def _sample(self, store: WatchedStore) -> None:
        try:
            store.sample()
        except Exception:  # noqa: BLE001 - nobody else would see it, and the next may work
            _log.exception("The figures of %s could not be taken.", store.store.name)
