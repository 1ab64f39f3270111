"""Appends to the log of a group: numbers and stamps records, and proposes them.

What is committed comes back with that of all other leaders (`applier`), and goes into queues and
index from there.
"""

from __future__ import annotations

from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.layout.spans import I8


class MemberAppender(Appender):
    """An `Appender` of a store that is a member of a group."""

    def appended(self, appended: Appended, next_offsets: I8) -> None:
        """Register records that are proposed now.

        Args:
            appended: the records.
            next_offsets: the next offset of each of the block's routes, after these records.
        """
        self._next.update(zip(appended.block.routes, next_offsets.tolist(), strict=True))

    def _has_room(self, _size: int) -> bool:
        """Whether records may be proposed: what dispatches them waits for others to have them."""
        return True
