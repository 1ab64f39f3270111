"""A cheap check whether a store's log has grown.

File sizes and times do not show that a broker writes: files have their full length from the start,
and their times do not change while they are written through memory. But the bytes after the last
record change. So `LogGrowth` remembers two physical offsets and the bytes there. The first is the
end of the newest record that is known to be dispatched to a queue. The second is the end of the
records that can be walked from there. It is further on if records of other queues follow, or if
stale bytes that an earlier use of the file left look like records. The records that are walked name
the queues that they will be dispatched to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.fields import PHYSICAL_OFFSET_PLACE, TOTAL_SIZE_PLACE
from rmqstore_spark.layout.kernel.reference.plain import STOP_BLANK
from rmqstore_spark.layout.record.dispatches import dispatches
from rmqstore_spark.layout.record.format import decode_records, walk_records
from rmqstore_spark.layout.spans import I8, string_array

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

_HEAD: Final = 64  # up to and including storeTimestamp: another record has other bytes here
_CHUNK: Final = 1 << 20
_MAX_CHUNKS: Final = 16  # of one call: a long stretch is walked in several calls
_MOST_NAMED: Final = 1024  # records: with more, checking all queues costs no more


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
        self._named: dict[tuple[str, int], int] | None = {}

    def named(self) -> dict[tuple[str, int], int]:
        """Return the queues of what was written, as of the last calls of `moved`.

        Returns:
            By topic and queueId, one past the greatest queue offset. A record may get its entry
            later, or none. Empty if not all queues are known.
        """
        named, self._named = self._named, {}
        return named or {}

    def dispatched(self, offset: int, *, all_before: int = 0) -> None:
        """Set the end of the newest record that is known to be in a queue.

        Args:
            offset: the record's end.
            all_before: all records before this offset are known to be in their queues, so they need
                not be walked.
        """
        if offset != self._dispatched:
            self._dispatched = offset
            self._dispatched_head = self._head(offset)
        if all_before > self._walked:
            self._walked, self._walked_head = all_before, None

    def moved(self) -> bool:
        """Return whether something was written since the last call. The first call can be True."""
        if self._checkpoint is not None:
            return self._committed_moved(self._checkpoint)
        head = self._head(self._dispatched)
        is_new = head != self._dispatched_head
        self._dispatched_head = head
        if self._walked < self._store.log.min_offset:
            self._walked, self._walked_head = self._store.log.min_offset, None
        begin = self._walked
        if begin != self._dispatched:
            head = self._head(begin)
        if head != self._walked_head:
            self._walked_head = head
            self._walk()
        if is_new and not begin <= self._dispatched <= self._walked:
            self._named = None  # written over stale bytes, or behind what cannot be walked
        return is_new or self._walked != begin

    def _head(self, offset: int) -> bytes:
        """Return the bytes at a physical offset; none if no file holds it."""
        try:
            return self._store.log.read(offset, _HEAD)
        except (SegmentExpiredError, CorruptStoreError):
            return b""

    def _walk(self) -> None:
        """Walk on over whole records."""
        begin = self._walked
        for _ in range(_MAX_CHUNKS):
            if not self._step():
                break
        if self._walked != begin:
            # The walk may have ended before the last record: the next call must continue here.
            self._walked_head = None

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
            large = self._large(filled)
            if large:
                at += large
                self._named = None  # its end, where its topic stands, has not been read
        moved = at != self._walked
        self._walked = at
        self._name(walk.positions, filled)
        return moved

    def _name(self, positions: I8, filled: int) -> None:
        """Remember the queues of records in the buffer."""
        if self._named is None or not len(positions):
            return
        if len(self._named) + len(positions) > _MOST_NAMED:
            self._named = None
            return
        records = decode_records(
            self._buffer, positions, np.diff(positions, append=filled).astype(np.int32)
        )
        if records.status.any():
            self._named = None
            return
        _, topics, queue_ids, offsets = dispatches(records)
        for names, numbers, last in (
            (string_array(records.topic), records.queue_id, records.queue_offset),
            (topics, queue_ids, offsets),
        ):
            for topic, number, offset in zip(
                names.to_pylist(), numbers.tolist(), last.tolist(), strict=True
            ):
                key = topic, number
                self._named[key] = max(self._named.get(key, 0), offset + 1)

    def _large(self, filled: int) -> int:
        """Return the size of a record that is longer than the buffer; 0 if none begins there."""
        size = int.from_bytes(self._buffer[TOTAL_SIZE_PLACE].tobytes(), "big", signed=True)
        own = int.from_bytes(self._buffer[PHYSICAL_OFFSET_PLACE].tobytes(), "big", signed=True)
        return size if size > filled and own == self._walked else 0

    def _committed_moved(self, checkpoint: str) -> bool:
        """Return whether the checkpoint, which says how much of a DLedger log counts, changed."""
        try:
            text = self._store.directory.files.read(checkpoint, 0, 4096)
        except FileNotFoundError:
            text = b""
        moved = text != self._committed
        self._committed = text
        self._named = None  # its records are not walked
        return moved
