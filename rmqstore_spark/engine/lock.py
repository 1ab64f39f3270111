"""What a store that is open has: the lock against writers, the guard against brokers, the mark.

A broker holds a POSIX record lock on byte 0 of `<store>/lock` (Java `tryLock(0, 1)`). An open file
description lock on the same byte conflicts with it, both ways. Unlike a POSIX lock, it is not lost
when another descriptor of the file is closed in this process. The kernel releases it when the
process ends.

A broker takes that lock only after it has recovered and truncated the log. But before that, it
refuses to load a store whose `commitlog/` holds a file of another size than its segments. The guard
is such a file. After a kill it stays until our own recovery and a clean close remove it.

The mark is the file `abort`: where it is, a process that opens the store compares log and queues.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from rmqstore_spark.errors import StoreLockedError, StoreWriteError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    NO_ROOM,
    explained,
    remove_file,
    replace_file,
    sync_folder,
)
from rmqstore_spark.files.names import GUARD_NAME

_F_OFD_SETLK: Final = 37
_FLOCK: Final = "hhqqi4x"
_HELD: Final = frozenset({errno.EACCES, errno.EAGAIN})
_TEXT: Final = """\
rmqstore-spark has this message store open for writing, or was killed while it had.

While this file is here a RocketMQ broker refuses to start on the store, and that is its purpose:
a broker would cut the log under the process that writes it.

To hand the store over to a broker: stop the process (rmqstore stop), which removes this file. If
the process was killed, run `rmqstore recover` on the store. Do not just delete the file.
"""


class StoreLock:
    """The writer's lock of a store, held from `take` to `release`.

    Args:
        store: the store directory, which must exist.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, "lock")
        self._store = store
        self._descriptor = -1

    def __enter__(self) -> StoreLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor >= 0

    def take(self) -> None:
        """Take the lock, or fail at once.

        Raises:
            StoreLockedError: another process, or another writer in this process, holds it.
            StoreWriteError: the lock file cannot be created.
        """
        if self.is_held:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        with explained(self.path, "opened"):
            descriptor = os.open(self.path, flags, FILE_MODE)
        try:
            fcntl.fcntl(descriptor, _F_OFD_SETLK, _whole_byte(fcntl.F_WRLCK))
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HELD:
                raise StoreLockedError(
                    f"{self._store} is open for writing in another process: a RocketMQ broker or "
                    "another store process holds its lock. Stop that one first, or write through "
                    "it."
                ) from error
            with explained(self.path, "locked"):
                raise
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. The file stays, as a broker leaves it."""
        if self.is_held:
            os.close(self._descriptor)
            self._descriptor = -1


def _whole_byte(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 1, 0)


class StoreGuard:
    """The guard file of a store.

    Args:
        commitlog: the folder of the CommitLog.
    """

    def __init__(self, commitlog: str) -> None:
        self.path = os.path.join(commitlog, GUARD_NAME)

    @property
    def is_placed(self) -> bool:
        """Whether the guard file exists."""
        return os.path.lexists(self.path)

    def place(self, *, is_full: bool = False) -> None:
        """Create the guard file durably; if the disk is full, with its length and no content."""
        if self.is_placed:
            return
        try:
            replace_file(self.path, _TEXT.encode())
        except StoreWriteError as error:
            if not (is_full and error.errno in NO_ROOM):
                raise
            self._place_hole()

    def _place_hole(self) -> None:
        """Create the file without a block of the disk: only its name and length matter."""
        with explained(self.path, "made"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, FILE_MODE)
            try:
                os.ftruncate(descriptor, len(_TEXT))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(os.path.dirname(self.path))

    def remove(self) -> None:
        """Remove the guard file durably. After that, a broker may open the store."""
        remove_file(f"{self.path}.tmp")  # left by a kill during `place`
        remove_file(self.path)


class OpenMark:
    """The file `abort`, which a store has until it is closed cleanly.

    Without it, RocketMQ 5 relies on queues that reach the end of the log, and never puts into them
    what they lack (`DefaultMessageStore.start` at 5.3.3: `setReputFromOffset(getConfirmOffset())`).

    Args:
        store: the store directory.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, "abort")

    @property
    def is_placed(self) -> bool:
        """Whether the file exists."""
        return os.path.lexists(self.path)

    def place(self) -> None:
        """Create the file durably, unless it exists.

        Raises:
            StoreWriteError: it cannot be created.
        """
        if not self.is_placed:
            replace_file(self.path, b"")

    def remove(self) -> None:
        """Remove the file durably: the store is closed cleanly."""
        remove_file(self.path)
