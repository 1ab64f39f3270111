"""Creates the files of the CommitLog at full length, the next one ahead of time.

A thread creates the next segment as `<store>/rmqstore/ready`, renames it into the log, where it
follows the last one, and flushes the folder: a put that needs it only opens it. Flushing a folder
can take hundreds of milliseconds beside a flush of the log. So `commitlog/` holds at most one
unused segment, and no incomplete one. Its blocks are allocated, so a write into it cannot find the
disk full.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import FILE_MODE, explained, make_folder, sync_folder

_log = logging.getLogger(__name__)

_RETRY_S = 10.0


class SegmentFiles:
    """Opens and creates segments. `prepare` and `close` may be called from any thread.

    Args:
        folder: the folder of the CommitLog.
        ready_path: the path at which a segment is created before it is in the folder.
        size: bytes of a segment.
    """

    def __init__(self, folder: str, ready_path: str, size: int) -> None:
        self.folder = folder
        self.size = size
        self._next = 0
        self._ready_path = ready_path
        self._changed = threading.Condition()
        self._ready_at: int | None = None  # where the segment begins that was created ahead
        self._is_durable = False
        self._unsynced: StoreWriteError | None = None
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
        """Create the next segment and return its descriptor. `sync` makes its name durable.

        Args:
            start: physical offset at which it begins: where the last one ends, or as `follow` said.

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

    def sync(self) -> None:
        """Flush the name of the segment that was made last, unless that was done ahead of time.

        Raises:
            StoreWriteError: the folder could not be flushed, now or ahead of time.
        """
        if self._unsynced is not None:
            raise self._unsynced
        if not self._is_durable:
            sync_folder(self.folder)

    def follow(self, end: int) -> None:
        """Let the next segment begin at an offset. One that was created elsewhere is removed.

        Its folder is not flushed.

        Args:
            end: physical offset at which the last segment ends; after a removal of later ones it
                is lower than before.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted)
            self._next = end
            if self._ready_at is not None and self._ready_at != end:
                self.remove(self._ready_at)
                self._ready_at = None

    def remove(self, start: int) -> None:
        """Remove a segment. Its folder is not flushed."""
        path = self.path(start)
        with explained(path, "removed"):
            os.unlink(path)

    def prepare(self) -> None:
        """Start to create the next segment ahead of time; returns at once.

        After a failure, as on a full disk, not every put tries again.
        """
        if not self._has_just_failed():
            self._want()

    def retry(self) -> None:
        """Try again to create a segment if one is missing; returns at once."""
        if self._lacking is not None:
            self._want()

    def _want(self) -> None:
        with self._changed:
            if self._ready_at is not None or self._wanted or self._closing:
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
        if self._ready_at is not None:
            self.remove(self._ready_at)
            self._ready_at = None
            sync_folder(self.folder)

    def _make(self, start: int) -> int:
        reach("roll.before_create")
        try:
            self._is_durable = self._take_ready(start)
            if not self._is_durable:
                self._allocate(self.path(start))
            reach("roll.after_create")
            try:
                return self.open(start)
            except StoreWriteError:
                _remove(self.path(start))  # else it would block the next try
                raise
        except StoreWriteError:
            self.follow(start)
            raise

    def _has_room(self) -> None:
        if self._lacking is not None:
            self._lacking = None
            _log.warning("The next segment was created: the store accepts messages again.")

    def _has_just_failed(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < _RETRY_S

    def _take_ready(self, start: int) -> bool:
        """Return whether a segment is ready; wait for one that is being created."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted)
            assert self._next == start, (
                f"a segment is made at {start}, and the last one ends at {self._next}"
            )
            self._next = start + self.size
            is_ready, self._ready_at = self._ready_at is not None, None
            return is_ready

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closing)
                if self._closing:
                    self._wanted = False
                    self._changed.notify_all()
                    return
                start = self._next
            made = self._make_ahead(start)
            with self._changed:
                self._ready_at, self._wanted = start if made else None, False
                self._failed_at = None if made else time.monotonic()
                self._changed.notify_all()

    def _make_ahead(self, start: int) -> bool:
        try:
            self._allocate(self._ready_path)
            self._move_ready(start)
        except Exception as error:  # noqa: BLE001 - the thread must continue
            if self._failed_at is None:
                _log.warning(
                    "The next segment of the CommitLog could not be created ahead of time: %s",
                    error,
                )
            return False
        self._has_room()
        return True

    def _move_ready(self, start: int) -> None:
        path = self.path(start)
        try:
            with explained(path, "made"):
                os.rename(self._ready_path, path)
        except StoreWriteError:
            _remove(self._ready_path)
            raise
        reach("roll.ahead")
        try:
            sync_folder(self.folder)
        except StoreWriteError as error:
            self._unsynced = error
            _remove(path)
            raise

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
