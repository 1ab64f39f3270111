"""Waiting for a condition."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["PATIENCE", "eventually"]

PATIENCE = 30.0


def eventually(condition: Any, seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds; returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found
