"""Remembers whether a store can still be written, and runs periodic work whose errors end that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rmqstore_spark.errors import StoreWriteError

_log = logging.getLogger(__name__)

_RESTS: Final = 9
"""As many times as long as a call took are to pass before the next one."""


class Health:
    """The error that made it unsafe to keep writing a store, and whether it was closed.

    Everything that writes the store has this object, and reports its errors here. `Admission` then
    refuses messages. Thread-safe.

    Args:
        store: the store directory.

    Attributes:
        failure: the first error that made it unsafe to continue; `fail` sets it.
        is_closed: whether the store was closed, or is closing.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self.failure: Exception | None = None
        self.is_closed = False

    def fail(self, error: Exception, what: str = "") -> None:
        """Stop accepting messages: it is no longer known what is on disk.

        Args:
            error: what those get who want to change the store, and what its process ends with.
            what: for the log, if the process ends with the error at once; else, the error is.
        """
        if self.failure is None:
            _log.error("The store %s accepts no more messages: %s", self._store, what or error)
            self.failure = error

    def fail_wrong_state(self, error: AssertionError) -> StoreWriteError:
        """Stop accepting messages: an invariant of the writer does not hold.

        Returns:
            What those get who wait: the store process has a bug, and only its next start, which
            checks the log, can tell what is stored.
        """
        wrong = StoreWriteError(
            f"The store process is in a wrong state, and stopped writing: {error}. Restart it: it "
            "then checks the log. Please report this with the process's log."
        )
        _log.error("An invariant does not hold:", exc_info=error)
        self.fail(wrong)
        return wrong

    def close(self) -> None:
        """Stop accepting messages: another process may have the store from now on."""
        self.is_closed = True


class Periodic:
    """Calls a function at intervals until it is closed.

    Args:
        name: name of the thread.
        interval_ms: time from the end of one call to the next.
        work: the function. An exception ends the thread.
        health: fails with that exception, or if the thread cannot start.
        longest_ms: the most that this time grows to, so that calls which take long fill no more
            than a tenth of all time; by default, it does not grow.

    Raises:
        RuntimeError: it cannot: there are no more threads.
    """

    def __init__(
        self,
        name: str,
        interval_ms: int,
        work: Callable[[], object],
        health: Health,
        longest_ms: int = 0,
    ) -> None:
        self._interval = interval_ms / 1000
        self._longest = max(interval_ms, longest_ms) / 1000
        self._work = work
        self._health = health
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            health.fail(error)
            raise

    def close(self) -> None:
        """Stop the thread; waits for a running call."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        wait = self._interval
        while not self._closing.wait(wait):
            began = time.monotonic()
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - nobody else would see it
                self._health.fail(error)
                return
            took = time.monotonic() - began
            wait = min(max(self._interval, _RESTS * took), self._longest)
