"""Remembers whether a store can still be written: what failed, and whether it was closed."""

from __future__ import annotations

import logging

__all__ = ["Health"]

_log = logging.getLogger(__name__)


class Health:
    """The error that made it unsafe to keep writing a store, and whether it was closed.

    Everything that writes the store has this object, and reports its errors here. `Admission` then
    refuses messages. Thread-safe.

    Args:
        store: the store directory.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._failure: Exception | None = None
        self._is_closed = False

    @property
    def failure(self) -> Exception | None:
        """The first error that made it unsafe to continue."""
        return self._failure

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed, or is closing."""
        return self._is_closed

    def fail(self, error: Exception) -> None:
        """Stop accepting messages: it is no longer known what is on disk."""
        if self._failure is None:
            _log.error("The store %s accepts no more messages: %s", self._store, error)
            self._failure = error

    def close(self) -> None:
        """Stop accepting messages: another process may have the store from now on."""
        self._is_closed = True
