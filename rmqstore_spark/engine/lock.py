"""The lock that gives a store a single writer: byte 0 of `<store>/lock`.

A broker holds a POSIX record lock there (Java `tryLock(0, 1)`). An open file description lock on
the same byte conflicts with it, both ways. Unlike a POSIX lock, it is not lost when another
descriptor of the file is closed in this process. The kernel releases it when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from rmqstore_spark.errors import StoreLockedError
from rmqstore_spark.files.durable import FILE_MODE, explained

_F_OFD_SETLK: Final = 37
_FLOCK: Final = "hhqqi4x"
_HELD: Final = frozenset({errno.EACCES, errno.EAGAIN})


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
