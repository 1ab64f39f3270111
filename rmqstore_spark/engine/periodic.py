"""Something done again and again by a thread, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Periodic"]


class Periodic:
    """Calls a function at intervals.

    Args:
        name: of the thread.
        interval_ms: from the end of a call to the next one.
        work: the function; what it raises ends the thread, and is told to `on_failure`.
        on_failure: told of it.
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
        """End the thread; a call that is under way is waited for."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - nobody else would hear of it
                self._on_failure(error)
                return
