"""A bounded set of open files, the one used longest ago closed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["HandleCache"]

H = TypeVar("H")


class HandleCache(Generic[H]):
    """Open handles by path, at most `capacity` of them. Not locked: one object, one thread.

    Args:
        open_handle: opens the file at a path.
        close_handle: closes a handle.
        capacity: handles kept open at most.
    """

    def __init__(
        self,
        open_handle: Callable[[str], H],
        close_handle: Callable[[H], None],
        capacity: int,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._open = open_handle
        self._close = close_handle
        self._capacity = capacity
        self._handles: OrderedDict[str, H] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, path: str) -> H:
        """The handle of a path, opened where it is not open yet."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        self.shrink(self._capacity - 1)
        handle = self._open(path)
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

    def shrink(self, keep: int) -> None:
        """Close the handles used longest ago until at most `keep` are left."""
        while len(self._handles) > keep:
            self._close(self._handles.popitem(last=False)[1])

    def forget(self) -> None:
        """Let all handles go without closing them: in a forked child they are the parent's."""
        self._handles.clear()

    def close(self) -> None:
        """Close all handles."""
        self.shrink(0)
