"""Knows which segments that are due must stay for now, and why.

A segment stays while a client reads it, and while messages in it are needed: half messages of
transactions that wait, and delayed messages that wait. On a slave, its master knows what waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmqstore_spark.engine.delay.delay_offsets import DelayOffsets
from rmqstore_spark.engine.delay.undelivered import oldest_undelivered
from rmqstore_spark.engine.expiry.rule import Aged
from rmqstore_spark.engine.expiry.uses import SegmentUses
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.transactions.transactions import Transactions


class Unneeded(NamedTuple):
    """The first of some segments that are due.

    Attributes:
        segments: those before the first one that must stay.
        remark: why that one stays; empty if none does.
        waits: whether it stays for messages that wait, which can take hours.
        undelivered: physical offset of the oldest delayed message that waits; None if none does. A
            segment behind it may go only as long as the disk has no room for it.
    """

    segments: Sequence[Aged]
    remark: str
    undelivered: int | None
    waits: bool = False


class NeededSegments:
    """The segments that something needs.

    Args:
        store: the open store.
        transactions: its transactions.

    Attributes:
        uses: the segments that clients are reading.
    """

    def __init__(self, store: OpenStore, transactions: Transactions) -> None:
        self._store = store
        self._config = store.config
        self._role = store.role
        self._transactions = transactions
        self.uses = SegmentUses(store.config.redelete_hanged_file_interval)

    def unneeded(self, due: Sequence[Aged], *, has_room: bool) -> Unneeded:
        """Return the segments before the first one that must stay.

        Args:
            due: segments, the oldest first.
            has_room: whether the disk has room for delayed messages that wait.

        Raises:
            RmqStoreError: it is not known what waits.
        """
        return self._without_waiting(self._without_used(self._all(due)), has_room=has_room)

    def awaited(self, segments: Sequence[Aged], *, has_room: bool) -> str:
        """Return why one of some segments would stay for messages that wait; empty if none would.

        Args:
            segments: the oldest first.
            has_room: as above.

        Raises:
            RmqStoreError: it is not known what waits.
        """
        return self._without_waiting(self._all(segments), has_room=has_room).remark

    def _all(self, due: Sequence[Aged]) -> Unneeded:
        return Unneeded(due, "", self._undelivered() if self._role.knows_what_waits else None)

    def _without_waiting(self, found: Unneeded, *, has_room: bool) -> Unneeded:
        if self._role.knows_what_waits:
            found = self._without_halves(found)
        return self._without_delayed(found) if has_room else found

    def _without_used(self, found: Unneeded) -> Unneeded:
        for number, segment in enumerate(found.segments):
            if self.uses.delays(segment.start):
                remark = (
                    f"A client or slave reads the segment {segment.start:020}: it is kept for at "
                    "most redeleteHangedFileInterval "
                    f"({self._config.redelete_hanged_file_interval} ms)."
                )
                return found._replace(segments=found.segments[:number], remark=remark)
        return found

    def _without_halves(self, found: Unneeded) -> Unneeded:
        if not self._transactions.has_halves:
            return found
        return _before(
            found,
            self._transactions.oldest(),
            "half messages of transactions that wait: it is kept until they are ended or given up.",
        )

    def _without_delayed(self, found: Unneeded) -> Unneeded:
        return _before(
            found,
            found.undelivered,
            "delayed messages that wait: it is kept until they are delivered and their progress is "
            "written (flushDelayOffsetInterval), or until the disk has no room for it.",
        )

    def _undelivered(self) -> int | None:
        """Return the oldest delayed message that waits, by the progress that is on disk.

        What was delivered since may be in memory only: after a power cut, it has to be delivered
        again.
        """
        queues, levels = self._store.queues, len(self._config.delays)
        if oldest_undelivered(queues, levels, {}) is None:  # few stores have any
            return None
        return oldest_undelivered(queues, levels, DelayOffsets(self._store.path).offsets)


def _before(found: Unneeded, oldest: int | None, reason: str) -> Unneeded:
    """Leave out the segments from the one with a physical offset on."""
    for number, segment in enumerate(found.segments):
        if oldest is not None and segment.end > oldest:
            remark = f"The segment {segment.start:020}, or one before it, has {reason}"
            return found._replace(segments=found.segments[:number], remark=remark, waits=True)
    return found
