"""Files of spilled stages that are gone, for the next stages to write over.

The pages of such a file are in memory. A write over them takes half of the time of a write into a
new file, or a tenth if a virtual machine has to get new pages from its host. Nothing reads what a
spare file holds.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqstore_spark.files.durable import FOLDER_MODE

_LEAST: Final = 1 << 20
_MOST: Final = 512 << 20
"""Bytes of all spare files."""


class SpareFiles:
    """Spare files. Thread-safe.

    Args:
        folder: holds them. It is removed, with what an earlier process left in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[Path, int] = {}
        self._count = 0
        self._has_folder = False
        self.drop()

    @property
    def kept(self) -> int:
        """Bytes of all spare files."""
        return sum(self._sizes.values())

    def take(self, path: Path) -> bool:
        """Move the file that was kept last to a path; return False if there is none."""
        with self._lock:
            while self._sizes:
                spare, _ = self._sizes.popitem()
                with suppress(OSError):
                    spare.rename(path)
                    return True
        return False

    def keep(self, path: Path) -> None:
        """Keep a file that nobody uses any more, if it is worth it; else leave it where it is."""
        with self._lock, suppress(OSError):
            size = os.stat(path).st_size
            if size < _LEAST or self.kept + size > _MOST:
                return
            if not self._has_folder:
                self._folder.mkdir(mode=FOLDER_MODE)
                self._has_folder = True
            spare = self._folder / str(self._count)
            self._count += 1
            path.rename(spare)
            self._sizes[spare] = size

    def drop(self) -> None:
        """Remove all spare files."""
        with self._lock:
            self._sizes.clear()
            self._has_folder = False
            shutil.rmtree(self._folder, ignore_errors=True)
