"""Reads the entries of many queues ahead, for a walk over the log that needs them in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.consumequeue import ENTRY_DTYPE, ENTRY_SIZE
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.reader.queue import Entries

__all__ = ["EntryPool"]

_HELD: Final = 1 << 20
_FEWEST: Final = 64
_MOST: Final = 16_384
_NO_SLOT: Final = 1 << 58


class EntryPool:
    """Holds some entries of each queue: at most a million in all, or 64 of each.

    Args:
        queues: number of queues.
        segments: returns the files of a queue by its number.
        growing: a broker writes the queues, and may have added files after they were listed.
    """

    def __init__(
        self, queues: int, segments: Callable[[int], Segments], *, growing: bool = False
    ) -> None:
        self._segments = segments
        self._growing = growing
        self._portion = min(_MOST, max(_FEWEST, _HELD // max(1, queues)))
        # `np.empty` takes memory only for the pages that are written.
        self._held = np.empty((queues, self._portion), ENTRY_DTYPE)
        self._flat = self._held.reshape(-1)
        self._first = np.zeros(queues, np.int64)
        self._count = np.zeros(queues, np.int64)

    def look_up(self, queue: I4, slots: I8) -> Entries:
        """Return the entries at some slots, as they are in the files.

        Args:
            queue: m numbers of queues.
            slots: m queue offsets.

        Returns:
            m entries. An entry that no file holds is all zeros, like an unwritten one.
        """
        found = self._held_ones(queue, slots)
        if found is not None:
            return found
        found = np.zeros(len(queue), ENTRY_DTYPE)
        todo = np.arange(len(queue))
        while len(todo):
            owners, wanted = queue[todo], slots[todo]
            at = wanted - self._first[owners]
            held = (at >= 0) & (at < self._count[owners])
            found[todo[held]] = self._flat[owners[held].astype(np.int64) * self._portion + at[held]]
            todo = todo[~held]
            if len(todo):
                todo = todo[~self._refill(queue, slots, todo)]
        return found

    def _held_ones(self, queue: I4, slots: I8) -> Entries | None:
        """Return the entries, if the pool holds all of them."""
        at = slots - self._first[queue]
        if len(at) and (at.min() < 0 or (at >= self._count[queue]).any()):
            return None
        return self._flat[queue.astype(np.int64) * self._portion + at]

    def _refill(self, queue: I4, slots: I8, todo: I8) -> npt.NDArray[np.bool_]:
        """Read each queue from its first wanted slot on. Return which slots no file holds."""
        owners, firsts = np.unique(queue[todo], return_index=True)
        dead = np.zeros(len(todo), np.bool_)
        for owner, row in zip(owners.tolist(), firsts.tolist(), strict=True):
            slot = int(slots[todo[row]])
            self._first[owner] = slot
            self._count[owner] = self._read(owner, slot)
            if not self._count[owner]:
                rows = np.flatnonzero(queue[todo] == owner)
                wanted = slots[todo[rows]]
                inside = (wanted >= 0) & (wanted < _NO_SLOT)
                at = np.where(inside, wanted, 0) * ENTRY_SIZE
                there = self._segments(owner).covers(at, np.full(len(at), ENTRY_SIZE))
                dead[rows] = ~(inside & there)
                dead[row] = True
        return dead

    def _read(self, owner: int, slot: int) -> int:
        """Read a portion from a slot on. Return the number of entries read."""
        segments = self._segments(owner)
        if self._growing and slot * ENTRY_SIZE >= segments.end_offset:
            segments.refresh()
        target = self._held[owner].view(np.uint8)
        filled = 0
        try:
            while filled < len(target):
                got = segments.read_into(slot * ENTRY_SIZE + filled, target[filled:])
                filled += got
        except (SegmentExpiredError, CorruptStoreError):
            pass  # the files end here
        return filled // ENTRY_SIZE
