"""Waiting for a condition, such as that a thread waits, and a file that lets threads wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "PATIENCE",
    "NewThreads",
    "eventually",
    "is_opening_a_file",
    "next_millisecond",
    "stuck_file",
]

PATIENCE = 30.0


def eventually(condition: Any, seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds; returns what it gave."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.02)  # what does not come at once is not asked for all the time
    return found


def next_millisecond() -> None:
    """Wait until what is stored next is later than what has been."""
    now = time.time()
    eventually(lambda: time.time() > now + 0.002)


class NewThreads:
    """Tells of the threads that have begun since it was made: others may be left of other tests."""

    def __init__(self) -> None:
        self._before = frozenset(threading.enumerate())

    def named(self, *words: str) -> list[str]:
        """The names of those that live and have one of some words in their names."""
        now = [thread.name for thread in threading.enumerate() if thread not in self._before]
        return [name for name in now if any(word in name for word in words)]


def is_opening_a_file(thread: threading.Thread) -> bool:
    """Whether a thread is in the system call: its first argument is AT_FDCWD."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text()
    return call.split()[1:2] == ["0xffffff9c"]


@contextmanager
def stuck_file(path: Path) -> Iterator[Callable[[], None]]:
    """Make a file that nobody can open to write before the function is called, or the block ends.

    Who waited for it cannot write to it then: it is a pipe without a reader. The file is gone, so
    the next one who opens it makes another.
    """
    os.mkfifo(path)

    def release() -> None:
        if path.is_fifo():
            name = os.open(path, os.O_PATH)
            path.unlink()
            os.close(os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_NONBLOCK))
            os.close(name)

    try:
        yield release
    finally:
        release()
