"""A cheap check whether a store's log has grown.

File sizes and times do not show that a broker writes: files have their full length from the start,
and their times do not change while they are written through memory. But the bytes after the last
record change. So `LogGrowth` remembers two physical offsets and the bytes there. The first is the
end of the newest record that is known to be dispatched to a queue. The second is the end of the
records that can be walked from there. It is further on if records of other queues follow, or if
stale bytes that an earlier use of the file left look like records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.kernel.reference.plain import STOP_BLANK
from rmqstore_spark.layout.record.format import walk_records

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = ["LogGrowth"]

_HEAD: Final = 64  # up to and including storeTimestamp: another record has other bytes here
_CHUNK: Final = 1 << 20
_MAX_CHUNKS: Final = 16  # of one call: a long stretch is walked in several calls


class LogGrowth:
    """Remembers where a log ends, and detects writes there.

    Args:
        store: the store. A new file of its log is seen only after a `refresh`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._buffer = np.empty(_CHUNK, np.uint8)
        dledger = store.directory.dledger_log()
        self._checkpoint = dledger.checkpoint if dledger else None
        self._committed = b""
        self._dispatched = self._walked = store.log.min_offset
        self._dispatched_head = b""
        self._walked_head: bytes | None = None

    def dispatched(self, offset: int) -> None:
        """Set the end of the newest record that is known to be in a queue."""
        if offset != self._dispatched:
            self._dispatched = offset
            self._dispatched_head = self._head(offset)
        if offset > self._walked:
            self._walked, self._walked_head = offset, None

    def moved(self) -> bool:
        """Return whether something was written since the last call. The first call can be True."""
        if self._checkpoint is not None:
            return self._committed_moved(self._checkpoint)
        head = self._head(self._dispatched)
        moved = head != self._dispatched_head
        self._dispatched_head = head
        if self._walked < self._store.log.min_offset:
            self._walked, self._walked_head = self._store.log.min_offset, None
        if self._walked != self._dispatched:
            head = self._head(self._walked)
        if head != self._walked_head:
            self._walked_head = head
            moved = self._walk() or moved
        return moved

    def _head(self, offset: int) -> bytes:
        """Return the bytes at a physical offset; none if no file holds it."""
        try:
            return self._store.log.read(offset, _HEAD)
        except (SegmentExpiredError, CorruptStoreError):
            return b""

    def _walk(self) -> bool:
        """Walk on over whole records. Return whether there were any."""
        begin = self._walked
        for _ in range(_MAX_CHUNKS):
            if not self._step():
                break
        if self._walked != begin:
            # The walk may have ended before the last record: the next call must go on from here.
            self._walked_head = None
        return self._walked != begin

    def _step(self) -> bool:
        log = self._store.log
        segment = log.segment_at(self._walked)
        if segment is None:
            return False
        room = min(segment.end - self._walked, _CHUNK)
        try:
            filled = log.read_into(self._walked, self._buffer[:room])
        except (SegmentExpiredError, CorruptStoreError):
            return False
        walk = walk_records(self._buffer, 0, filled, self._walked)
        at = segment.end if walk.stop == STOP_BLANK else self._walked + walk.at
        if at == self._walked and len(walk.positions) == 0 and filled == _CHUNK:
            at += self._large(filled)
        moved = at != self._walked
        self._walked = at
        return moved

    def _large(self, filled: int) -> int:
        """Return the size of a record that is longer than the buffer; 0 if none begins there."""
        size = int.from_bytes(self._buffer[:4].tobytes(), "big", signed=True)
        own = int.from_bytes(self._buffer[28:36].tobytes(), "big", signed=True)
        return size if size > filled and own == self._walked else 0

    def _committed_moved(self, checkpoint: str) -> bool:
        """Return whether the checkpoint, which says how much of a DLedger log counts, changed."""
        try:
            text = self._store.directory.files.read(checkpoint, 0, 4096)
        except FileNotFoundError:
            text = b""
        moved = text != self._committed
        self._committed = text
        return moved
