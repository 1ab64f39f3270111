"""Room on the disk that an open store keeps for its next start.

    <store>/rmqstore/reserve.0 to .3     files of allocated blocks, without content

A start has to write a little: the guard, the entries of the last messages, what it has found. On a
disk that is full to the last byte, or has no inode left, these files are removed for that, and the
store opens as DISK_FULL: it is read, and it expires. It accepts messages once there is room for
the files again, so the start after that has them too.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Final

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import FILE_MODE, explained
from rmqstore_spark.files.names import GUARD_NAME, OWN_FOLDER

_log = logging.getLogger(__name__)

RESERVE_PREFIX: Final = "reserve."
_FILES: Final = 4  # as many inodes as a start may need at one time
_LEAST: Final = 64 << 10
_MOST: Final = 1 << 20


class Reserve:
    """The reserve of a store. The methods belong to one thread at a time.

    Args:
        store: the store directory.
        segment_size: bytes of a segment of its log; a store of small files keeps a small reserve.

    Attributes:
        lacking: why the reserve could not be made; None once it is there.
    """

    def __init__(self, store: str, segment_size: int) -> None:
        self._own = os.path.join(store, OWN_FOLDER)
        self._log_folder = os.path.join(store, "commitlog")
        self._size = min(max(segment_size // 16, _LEAST), _MOST) // _FILES
        self.lacking: StoreWriteError | None = None

    def free(self) -> None:
        """Remove the reserve, and segments that were made ahead."""
        paths = [*self._paths, os.path.join(self._own, "ready")]
        paths.append(os.path.join(self._log_folder, f"{GUARD_NAME}.ready"))
        for path in paths:
            with suppress(OSError):
                os.unlink(path)

    def fill(self) -> None:
        """Make what is missing of the reserve, if there is room for it."""
        was_lacking = self.lacking is not None
        try:
            for path in self._paths:
                if not os.path.lexists(path):
                    self._make(path)
        except StoreWriteError as error:
            self.lacking = error
            if not was_lacking:
                _log.warning(
                    "%s The disk is full: the store can be read, and accepts messages again when "
                    "there is room for its reserve (%d KiB).",
                    error, self._size * _FILES >> 10,
                )  # fmt: skip
            return
        self.lacking = None
        if was_lacking:
            _log.warning("There is room on the disk again: the store accepts messages.")

    @property
    def _paths(self) -> list[str]:
        names = [f"{RESERVE_PREFIX}{number}" for number in range(_FILES)]
        return [os.path.join(self._own, name) for name in names]

    def _make(self, path: str) -> None:
        with explained(path, "made"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, FILE_MODE)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            except BaseException:
                with suppress(OSError):
                    os.unlink(path)
                raise
            finally:
                os.close(descriptor)
