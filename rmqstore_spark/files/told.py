"""Tell of a file that is read often once, not with each reading."""

from __future__ import annotations

import threading
from typing import Final

from rmqstore_spark.files.base import Files

_MOST: Final = 1000


class Told:
    """What this process last said of each file. Threads may share it.

    It remembers 1,000 files. One that was forgotten for others is told of again, not passed over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[tuple[str, str], str] = {}

    def is_new(self, files: Files, path: str, text: str) -> bool:
        """Return whether something else, or nothing, was said of a file before; note the text."""
        key = files.place, path
        with self._lock:
            is_new = self._texts.pop(key, None) != text
            if len(self._texts) >= _MOST:
                del self._texts[next(iter(self._texts))]
            self._texts[key] = text
            return is_new

    def forget(self, files: Files, path: str) -> None:
        """Note that a file is sound."""
        with self._lock:
            self._texts.pop((files.place, path), None)
