"""Knows which segments clients of this process are reading, so that expiry waits for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore_spark.files.segments import segment_start

_LOG: Final = "commitlog/"


class SegmentUses:
    """The segments in use. Thread-safe.

    Args:
        patience_ms: how long a segment in use is kept after it was first due.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience = patience_ms / 1000
        self._lock = threading.Lock()
        self._readers: Counter[int] = Counter()
        self._due_since: dict[int, float] = {}

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Mark the file at a path, relative to the store, as in use; only segments count.

        A segment may expire all the same in the end: then a client that has it open can read on.
        """
        start = segment_start(path.removeprefix(_LOG)) if path.startswith(_LOG) else None
        if start is None:
            yield
            return
        with self._lock:
            self._readers[start] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers[start] -= 1
                if not self._readers[start]:
                    del self._readers[start]

    def delays(self, start: int) -> bool:
        """Return whether a segment that is due must be kept for now, because it is in use."""
        with self._lock:
            if not self._readers[start]:
                self._due_since.pop(start, None)
                return False
            since = self._due_since.setdefault(start, time.monotonic())
            if time.monotonic() - since < self._patience:
                return True
            del self._due_since[start]
            return False
