"""Waiting for a condition, such as that a thread waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["PATIENCE", "eventually", "is_opening_a_file"]

PATIENCE = 30.0


def eventually(condition: Any, seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds; returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def is_opening_a_file(thread: threading.Thread) -> bool:
    """Whether a thread is in the system call: its first argument is AT_FDCWD."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text()
    return call.split()[1:2] == ["0xffffff9c"]
