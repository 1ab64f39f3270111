"""The guard file: keeps brokers away from a store that we have open or did not close.

A broker takes the store's lock only after it has recovered and truncated the log. But before that,
it refuses to load a store whose `commitlog/` holds a file of another size than its segments. The
guard is such a file. After a kill it stays until our own recovery and a clean close remove it.
"""

from __future__ import annotations

import os
from typing import Final

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    NO_ROOM,
    explained,
    remove_file,
    replace_file,
    sync_folder,
)
from rmqstore_spark.files.names import GUARD_NAME

_TEXT: Final = """\
rmqstore-spark has this message store open for writing, or was killed while it had.

While this file is here a RocketMQ broker refuses to start on the store, and that is its purpose:
a broker would cut the log under the process that writes it.

To hand the store over to a broker: stop the process (rmqstore stop), which removes this file. If
the process was killed, run `rmqstore recover` on the store. Do not just delete the file.
"""


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
