"""Creates the files of the CommitLog at full length, the next one ahead of time.

A thread creates the next segment as `<store>/rmqstore/ready`. It is renamed into the log when it is
needed, so `commitlog/` never holds an unused or incomplete segment. Its blocks are allocated, so a
write into it cannot find the disk full.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from contextlib import suppress

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import FILE_MODE, explained, make_folder

_log = logging.getLogger(__name__)

_RETRY_S = 10.0


class SegmentFiles:
    """Opens and creates segments. `prepare` and `close` may be called from any thread.

    Args:
        folder: the folder of the CommitLog.
        ready_path: the path of the segment that is created ahead of time.
        size: bytes of a segment.
    """

    def __init__(self, folder: str, ready_path: str, size: int) -> None:
        self.folder = folder
        self.size = size
        self._ready_path = ready_path
        self._changed = threading.Condition()
        self._ready = False
        self._wanted = False
        self._failed_at: float | None = None
        self._lacking: StoreWriteError | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        make_folder(os.path.dirname(ready_path))
        _remove(ready_path)

    @property
    def lacking(self) -> StoreWriteError | None:
        """Why a needed segment could not be created; None once there is one again."""
        return self._lacking

    def path(self, start: int) -> str:
        """Return the path of the segment that starts at a physical offset."""
        return os.path.join(self.folder, f"{start:020}")

    def open(self, start: int) -> int:
        """Open an existing segment and return its descriptor.

        Raises:
            StoreWriteError: the segment cannot be opened.
        """
        path = self.path(start)
        with explained(path, "opened"):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def make(self, start: int) -> int:
        """Create a segment and return its descriptor. Its folder is not flushed.

        Raises:
            StoreWriteError: the segment cannot be created; `errno` says why, and nothing of it is
                left.
        """
        try:
            descriptor = self._make(start)
        except StoreWriteError as error:
            if self._lacking is None:
                _log.warning(
                    "The store refuses messages until the next segment can be created: %s", error
                )
            self._lacking = error
            raise
        self._has_room()
        return descriptor

    def remove(self, start: int) -> None:
        """Remove a segment. Its folder is not flushed."""
        path = self.path(start)
        with explained(path, "removed"):
            os.unlink(path)

    def prepare(self) -> None:
        """Start to create the next segment ahead of time; returns at once.

        After a failure, as on a full disk, not every put tries again.
        """
        if self._ready or self._wanted:  # as after nearly each put: not worth the lock
            return
        if not self._has_just_failed():
            self._want()

    def retry(self) -> None:
        """Try again to create a segment if one is missing; returns at once."""
        if self._lacking is not None:
            self._want()

    def _want(self) -> None:
        with self._changed:
            if self._ready or self._wanted or self._closing:
                return
            self._wanted = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rmqstore-allocate", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread, and remove the segment created ahead of time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        _remove(self._ready_path)

    def _make(self, start: int) -> int:
        path = self.path(start)
        reach("roll.before_create")
        if not (self._take_ready() and self._move_ready(path)):
            self._allocate(path)
        reach("roll.after_create")
        try:
            return self.open(start)
        except StoreWriteError:
            _remove(path)  # else it would block the next try
            raise

    def _has_room(self) -> None:
        if self._lacking is not None:
            self._lacking = None
            _log.warning("The next segment was created: the store accepts messages again.")

    def _has_just_failed(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < _RETRY_S

    def _take_ready(self) -> bool:
        """Return whether a segment is ready; wait for one that is being created."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted)
            ready, self._ready = self._ready, False
            return ready

    def _move_ready(self, path: str) -> bool:
        try:
            os.rename(self._ready_path, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                _log.warning("%s could not be used: %s", self._ready_path, error)
            _remove(self._ready_path)
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closing)
                if self._closing:
                    self._wanted = False
                    self._changed.notify_all()
                    return
            made = self._make_ahead()
            with self._changed:
                self._ready, self._wanted = made, False
                self._failed_at = None if made else time.monotonic()
                self._changed.notify_all()

    def _make_ahead(self) -> bool:
        try:
            self._allocate(self._ready_path)
        except Exception as error:  # noqa: BLE001 - the thread must continue
            if self._failed_at is None:
                _log.warning(
                    "The next segment of the CommitLog could not be created ahead of time: %s",
                    error,
                )
            return False
        self._has_room()
        return True

    def _allocate(self, path: str) -> None:
        with explained(path, "made"):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, FILE_MODE)
            try:
                os.posix_fallocate(descriptor, 0, self.size)
                os.fsync(descriptor)
            except BaseException:
                _remove(path)
                raise
            finally:
                os.close(descriptor)


def _remove(path: str) -> None:
    with explained(path, "removed"), suppress(FileNotFoundError):
        os.unlink(path)
