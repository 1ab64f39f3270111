"""The guard that keeps a broker away from a store that our writer has open, or was killed with.

A broker takes the store's lock only after it has recovered and truncated the log. But before that
it refuses to load a store whose `commitlog/` holds a file of another size than its segments: the
guard is such a file. It stays after a kill, until our own recovery and a clean close remove it.
"""

from __future__ import annotations

import os
from typing import Final

from rmqstore_spark.files.durable import remove_file, replace_file
from rmqstore_spark.files.own_names import GUARD_NAME

__all__ = ["StoreGuard"]

_TEXT: Final = """\
rmqstore-spark has this message store open for writing, or was killed while it had.

While this file is here a RocketMQ broker refuses to start on the store, and that is its purpose:
a broker would cut the log under the process that writes it.

To hand the store over to a broker: stop the process (rmqstore stop), which removes this file. If
the process was killed, run `rmqstore recover` on the store. Do not just delete the file.
"""


class StoreGuard:
    """The guard file of one store.

    Args:
        commitlog: the folder of the log's segments.
    """

    def __init__(self, commitlog: str) -> None:
        self.path = os.path.join(commitlog, GUARD_NAME)

    @property
    def is_placed(self) -> bool:
        """Whether the file is there."""
        return os.path.lexists(self.path)

    def place(self) -> None:
        """Put the file in place, durably."""
        if not self.is_placed:
            replace_file(self.path, _TEXT.encode())

    def remove(self) -> None:
        """Remove the file, durably: a broker may have the store again."""
        remove_file(f"{self.path}.tmp")  # of a kill while it was put in place
        remove_file(self.path)
