"""Counts failed calls by the status that the client got."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError, RefusedError, StoreWriteError


class Failures:
    """Counts failed calls of one kind. Thread-safe.

    All statuses exist from the start: the rate of a counter that appears with its first failure
    does not show that failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {str(status): 0 for status in PutStatus if status is not PutStatus.PUT_OK}

    def count(self, status: str) -> None:
        """Count a call by its status, unless that is PUT_OK."""
        if status != PutStatus.PUT_OK:
            with self._lock:
                self._counts[str(status)] = self._counts.get(str(status), 0) + 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count an exception of its body by the status that a client gets for it."""
        try:
            yield
        except (BlockError, RefusedError) as error:
            self.count(error.status)
            raise
        except StoreWriteError:
            self.count(PutStatus.SERVICE_NOT_AVAILABLE)
            raise

    def to_json(self) -> dict[str, int]:
        """Return the number of failures by status."""
        with self._lock:
            return dict(self._counts)
