"""Keeps the flush mark of an open store: the offset up to which its log is on disk.

It is only a witness. A store opens without it, and where it cannot be written, as on a full disk,
the old one stays, which says less, and nothing wrong.
"""

from __future__ import annotations

import logging
import os

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import explained, replace_file, write_all
from rmqstore_spark.files.names import FLUSH_MARK_NAME, OWN_FOLDER
from rmqstore_spark.layout.checkpoint import FLUSH_MARK_SIZE, FlushMark

__all__ = ["FlushMarkKeeper"]

_log = logging.getLogger(__name__)


class FlushMarkKeeper:
    """Writes the flush mark of a store. The methods belong to one thread at a time.

    Args:
        store: the store directory.
        segment_size: bytes of a segment.
    """

    def __init__(self, store: str, segment_size: int) -> None:
        self._path = os.path.join(store, OWN_FOLDER, FLUSH_MARK_NAME)
        self._segment_size = segment_size
        self._descriptor = -1

    def begin(self, offset: int) -> None:
        """Set the mark durably, also to a lower offset than before, and keep the file open.

        Args:
            offset: physical offset at which the recovered log ends.

        Raises:
            StoreWriteError: the mark on disk lies after the offset, and cannot be replaced.
        """
        before = load_mark(self._path)
        mark = FlushMark(offset, self._segment_size)
        try:
            if before != mark:
                replace_file(self._path, mark.encode())
            with explained(self._path, "opened"):
                flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags)
        except StoreWriteError as error:
            if before is not None and before.offset > offset:
                raise
            self._give_up(error)

    def advance(self, offset: int) -> None:
        """Write that the log is on disk up to an offset."""
        if self._descriptor < 0:
            return
        try:
            with explained(self._path, "written"):
                write_all(self._descriptor, FlushMark(offset, self._segment_size).encode(), 0)
        except StoreWriteError as error:
            self.close()
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: StoreWriteError) -> None:
        _log.warning(
            "%s Until the next start nothing records how far the log is flushed. If its end is "
            "lost after a kill, less shows that.",
            error,
        )


def load_mark(path: str) -> FlushMark | None:
    """Return the flush mark in a file; None if there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            return FlushMark.decode(file.read(FLUSH_MARK_SIZE + 1))
    except OSError:
        return None
