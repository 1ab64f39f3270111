"""Room for entries on a member's disk, so that flushes of what it has taken do not fail."""

from __future__ import annotations

import os
import time
from typing import Final

_SPARE_BYTES: Final = 64 << 20
"""A disk with less room takes no entries."""
_UNSEEN_BYTES: Final = 8 << 20
_UNSEEN_SECONDS: Final = 0.1


class DiskRoom:
    """The room. It is looked at again after some entries, and after some time: others write too.

    Args:
        folder: where the entries go.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._left = 0  # bytes of entries that may come before the next look
        self._until = 0.0  # when it is due, by `time.monotonic`

    def has(self, size: int) -> bool:
        """Return whether there is room for entries of this size, and count them."""
        if size > self._left or time.monotonic() > self._until:
            return self.has_now(size)
        self._left -= size
        return True

    def has_now(self, size: int) -> bool:
        """Return the same, and look for it."""
        found = os.statvfs(self._folder)
        room = found.f_bavail * found.f_frsize - _SPARE_BYTES - size
        self._left = max(min(room, _UNSEEN_BYTES), 0)
        self._until = time.monotonic() + _UNSEEN_SECONDS
        return room >= 0
