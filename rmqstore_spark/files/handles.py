"""An LRU cache of open files."""

from __future__ import annotations

import errno
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["HandleCache"]

H = TypeVar("H")


class HandleCache(Generic[H]):
    """An LRU cache of open handles by path. Not locked: use one object per thread.

    Args:
        close_handle: closes a handle.
        capacity: maximum number of open handles.
    """

    def __init__(self, close_handle: Callable[[H], None], capacity: int) -> None:
        self._handles: OrderedDict[str, H] = OrderedDict()
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._close = close_handle
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._handles)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # modules are gone by then, and the system closes all files
            self.close()

    def get(self, path: str, open_handle: Callable[[str], H]) -> H:
        """Return the handle of a path, and open it if needed."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        self._shrink(self._capacity - 1)
        try:
            handle = open_handle(path)
        except OSError as error:
            # The limit applies to the whole process: close the handles held here, then try again.
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._handles:
                raise
            self._shrink(0)
            handle = open_handle(path)
        self._handles[path] = handle
        return handle

    def peek(self, path: str) -> H | None:
        """Return the handle of a path if it is open, without counting this as a use."""
        return self._handles.get(path)

    def drop(self, path: str) -> None:
        """Close the handle of a path, if it is open."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._close(handle)

    def forget(self) -> None:
        """Drop all handles without closing them: in a forked child they belong to the parent."""
        self._handles.clear()

    def close(self) -> None:
        """Close all handles."""
        self._shrink(0)

    def _shrink(self, keep: int) -> None:
        """Close the least recently used handles until at most `keep` are left."""
        while len(self._handles) > keep:
            self._close(self._handles.popitem(last=False)[1])
