"""Changes of a table that is kept in a file: each is on disk before it counts.

Many can be written with one write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Changes(Generic[_T]):
    """The content of a table, and what a thread is about to make of it.

    Args:
        held: the content.
        write: writes another one durably; what it raises leaves the content as it was.

    Attributes:
        held: the content that counts. It is replaced, never changed: any thread may read it.
    """

    def __init__(self, held: _T, write: Callable[[_T], None]) -> None:
        self.held = held
        self._write = write
        self._lock = threading.RLock()
        self._depth = 0
        self._now = held

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let only this thread change the table, and write what it has changed at the end.

        Within the body it may be called again: then the end of the outermost body writes. If a body
        or the writing fails, nothing of it counts.
        """
        with self._lock:
            before, self._depth = self.now, self._depth + 1
            self._now = before
            try:
                yield
                if self._depth == 1:
                    self.write()
            except BaseException:
                self._now = before
                raise
            finally:
                self._depth -= 1

    @property
    def is_outermost(self) -> bool:
        """Whether this thread is in no body within another."""
        return self._depth == 1

    @property
    def now(self) -> _T:
        """The content with what this thread has changed. Only within `changing`."""
        return self._now if self._depth else self.held

    def set(self, content: _T) -> None:
        """Change the content. Only within `changing`."""
        self._now = content

    def write(self) -> None:
        """Write what was changed so far. Only within the outermost `changing`."""
        if self._now is not self.held:
            self._write(self._now)
            self.held = self._now
