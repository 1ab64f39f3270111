"""A bounded set of open files, the one used longest ago closed first."""

from __future__ import annotations

import errno
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["HandleCache"]

H = TypeVar("H")


class HandleCache(Generic[H]):
    """Open handles by path, at most `capacity` of them. Not locked: one object, one thread.

    Args:
        close_handle: closes a handle.
        capacity: handles kept open at most.
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
        if not sys.is_finalizing():  # the system closes them all, and modules are gone by then
            self.close()

    def get(self, path: str, open_handle: Callable[[str], H]) -> H:
        """The handle of a path, opened where it is not open yet."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        self._shrink(self._capacity - 1)
        try:
            handle = open_handle(path)
        except OSError as error:
            # The limit is the whole process's: give back what is held here, then try again.
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._handles:
                raise
            self._shrink(0)
            handle = open_handle(path)
        self._handles[path] = handle
        return handle

    def peek(self, path: str) -> H | None:
        """The handle of a path if it is open; does not count as a use."""
        return self._handles.get(path)

    def drop(self, path: str) -> None:
        """Close the handle of a path, if there is one."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._close(handle)

    def forget(self) -> None:
        """Let all handles go without closing them: in a forked child they are the parent's."""
        self._handles.clear()

    def close(self) -> None:
        """Close all handles."""
        self._shrink(0)

    def _shrink(self, keep: int) -> None:
        """Close the handles used longest ago until at most `keep` are left."""
        while len(self._handles) > keep:
            self._close(self._handles.popitem(last=False)[1])
