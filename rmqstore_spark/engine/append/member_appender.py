"""Appends to the log of a group: numbers and stamps records, and proposes them.

What is committed comes back with that of all other leaders (`applier`), and goes into queues and
index from there. A block is kept until then, so that it need not be read from the log again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress

from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.layout.spans import I8


class MemberAppender(Appender):
    """An `Appender` of a store that is a member of a group. See there."""

    def __init__(self, store: OpenStore, dispatcher: Dispatcher, health: Health) -> None:
        super().__init__(store, dispatcher, health)
        self._proposed: deque[Appended] = deque()

    def appended(self, appended: Appended, next_offsets: I8) -> None:
        """Register records that are proposed now.

        Args:
            appended: the records.
            next_offsets: the next offset of each of the block's routes, after these records.
        """
        self._next.update(zip(appended.block.routes, next_offsets.tolist(), strict=True))
        first = appended.first_offsets
        if appended.end and first is not None and first.all():
            self._proposed.append(appended)  # a queue that begins again is begun from the log

    def next_proposed(self, seen: int) -> Appended | None:
        """Return the next block that was proposed, and forget those before it.

        One thread at a time calls it.

        Args:
            seen: position up to which the log needs no block any more.

        Returns:
            The first block whose first entry is at this position or behind it; None if none is
            known. The log can have others before it.
        """
        with suppress(IndexError):  # there are none any more
            while self.begin_of(self._proposed[0]) < seen:
                self._proposed.popleft()
            return self._proposed[0]
        return None

    def begin_of(self, block: Appended) -> int:
        """Return the position of the first entry of a block."""
        return int(block.physical_offset[0]) - self.log.lead

    def forget(self, topics: Collection[str]) -> None:
        """Forget the next offsets of the queues of topics. Needs the append lock.

        What is proposed is read from the log when it is committed, as a copy of it would be: its
        topics may be gone, and their queues begin again.
        """
        super().forget(topics)
        self.forget_proposed()

    def forget_proposed(self) -> None:
        """Forget all blocks: others may lead, and have other entries at their places."""
        self._proposed.clear()

    def _has_room(self, _size: int) -> bool:
        """Whether records may be proposed: what dispatches them waits for others to have them."""
        return True
