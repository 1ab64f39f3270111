"""The stores of the pages: their figures of now, and what these were."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.server.status.history import History
from rmqstore_spark.server.stores.served import ServedStore

_log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 10.0
_LEAST_SHARE: Final = 0.005
"""Of a core: samples of a store whose figures take long are as much rarer."""
_FAILED: Final = "FAILED"


class WatchedStore:
    """A store, and its figures. Thread-safe.

    Args:
        store: the store.
        fresh_seconds: how old its figures may be; who opens many pages asks for them once.
    """

    def __init__(self, store: ServedStore, fresh_seconds: float) -> None:
        self.store = store
        self._fresh_seconds = fresh_seconds
        self._lock = threading.Lock()
        self._stats: Mapping[str, Any] = {}
        self._taken = float("-inf")
        self._history = History()

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures; see `ServedStore.stats`.

        Of a store that cannot be read, there is only `state`: FAILED.
        """
        with self._lock:
            return self._fresh()

    def sample(self) -> float:
        """Add the figures of now to the history; return how many seconds that took."""
        with self._lock:
            began = time.monotonic()
            self._history.add(began, self._fresh())
            return time.monotonic() - began

    def look_back(self, look: Callable[[History], Any]) -> Any:
        """Call a function with the history, which it must not keep; return what it returns."""
        with self._lock:
            return look(self._history)

    def _fresh(self) -> Mapping[str, Any]:
        if time.monotonic() - self._taken > self._fresh_seconds:
            try:
                self._stats = self.store.stats()
            except (RmqStoreError, OSError) as error:
                _log.debug("%s cannot be read", self.store.name, exc_info=True)
                self._stats = {"state": _FAILED, "failure": str(error)}
            self._taken = time.monotonic()
        return self._stats


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
        wait = 0.0
        while not self._closing.wait(wait):
            took = 0.0
            for store in self._stores:
                try:
                    took += store.sample()
                except Exception:  # noqa: BLE001 - nobody else would see it, and the next may work
                    _log.exception("The figures of %s could not be taken.", store.store.name)
            wait = max(self._seconds, took / _LEAST_SHARE)
