"""Calls a function periodically in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmqstore_spark.engine.health import Health


class Periodic:
    """Calls a function at intervals until it is closed.

    Args:
        name: name of the thread.
        interval_ms: time from the end of one call to the next.
        work: the function. An exception ends the thread.
        health: fails with that exception, or if the thread cannot start.

    Raises:
        RuntimeError: it cannot: there are no more threads.
    """

    def __init__(
        self, name: str, interval_ms: int, work: Callable[[], object], health: Health
    ) -> None:
        self._interval = interval_ms / 1000
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
        while not self._closing.wait(self._interval):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - nobody else would see it
                self._health.fail(error)
                return
