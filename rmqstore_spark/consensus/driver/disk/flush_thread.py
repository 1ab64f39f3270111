"""Flushes what a member has written, in a thread, one flush after the other.

Its event loop hears the leader and its peers meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from rmqstore_spark.consensus.driver.disk.segmented import Unflushed


class FlushThread:
    """A thread that flushes, until it is closed. Use it in the thread of a running event loop.

    Args:
        done: is called in the event loop after each flush, with the number it was given, and the
            error if it failed.
    """

    def __init__(self, done: Callable[[int, Exception | None], object]) -> None:
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[int, Unflushed] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dledger-flush", daemon=True)
        self._thread.start()

    def flush(self, number: int, unflushed: Unflushed) -> None:
        """Flush files after those that were given before."""
        self._jobs.put((number, unflushed))

    def close(self) -> None:
        """Flush what was given, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, unflushed = job
            error: Exception | None = None
            try:
                unflushed.flush()
            except Exception as failure:  # noqa: BLE001 - the member ends with it
                error = failure
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._done, number, error)
