"""Keeps Spark's garbage collections between two tasks short."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["short_collections"]


@contextmanager
def short_collections() -> Iterator[None]:
    """Run a task; after the first one of a process, exempt what it has loaded from collections.

    Spark's workers run one task after the other, and collect garbage after each. That visits every
    object of the process, almost all of which belong to modules: 40 ms of CPU, as much as decoding
    130,000 messages takes. In return, objects of the first task that refer to one another in a
    circle stay in memory. Those of later tasks do not.
    """
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
