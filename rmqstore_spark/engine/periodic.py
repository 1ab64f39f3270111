"""Calls a function periodically in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Periodic"]


class Periodic:
    """Calls a function at intervals until it is closed.

    Args:
        name: name of the thread.
        interval_ms: time from the end of one call to the next.
        work: the function. An exception ends the thread, and is passed to `on_failure`.
        on_failure: called with that exception.
    """

    def __init__(
        self,
        name: str,
        interval_ms: int,
        work: Callable[[], object],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._interval = interval_ms / 1000
        self._work = work
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits for a running call."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - nobody else would see it
                self._on_failure(error)
                return
