"""The log of a member of a DLedger group, as the engine sees it.

    dledger-{selfId}/data/{20 digits}      segments, each entry a header of 48 bytes and a record

The member's driver writes the files (`consensus.driver`). The engine proposes records, while the
store leads, and sees those that are committed: it never has to take anything back. So the log has
three ends. Proposed records are placed behind `end`. Readers see the log up to `published`, which
is on the disk of a quorum and of this member; it moves before queues lead there, or a consumer
would pass over a message that is in its queue and not in the log. A put is answered when its
records are in queues and index, too: `see`.

A record is behind the header of its entry: `lead`. See docs/format.md, "DLedger".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.consensus.driver.group import OldLog
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.log.placement import Placement
from rmqstore_spark.engine.log.reserved import ReservedBlock
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import remove_file
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.layout.spans import I8, U1

_MOST_PENDING: Final = 64 << 20
"""Bytes of entries that may be proposed and not committed."""
_BATCH_PENDING: Final = 4 << 20
"""The same while a batch is proposed."""
_CHUNK: Final = 256 << 10
"""Bytes of records that the driver takes in a step: between two, it hears of the other members."""

Propose = Callable[[int, int, Sequence[bytes]], None]
"""Appends records, as the leader of a term, from a position on; returns at once."""


class MemberLog(CommitLogWriter):
    """The log of a member. `write` needs the append lock; the rest is for any thread.

    Args:
        files: the files of its segments; nothing is written to them here.
        begin, committed: where it begins, and where its last committed entry ends.
        last_timestamp: see `CommitLogWriter`.
        propose: appends records to the group's log.
        remove: removes the segment that begins at a physical offset, the first of the group's log.
        old: what lies before the group's log.

    Attributes:
        watcher: is called when more is committed and seen, or a term is over.
    """

    lead = ENTRY_HEADER_SIZE

    def __init__(
        self,
        files: SegmentFiles,
        begin: int,
        committed: int,
        last_timestamp: int,
        propose: Propose,
        remove: Callable[[int], None],
        old: OldLog,
    ) -> None:
        super().__init__(files, begin, committed, last_timestamp)
        self._propose = propose
        self._remove = remove
        self._old = old
        self._end = committed
        self._changed = threading.Condition()
        self._flushed = self._committed = self._applied = committed
        self.watcher: Callable[[], object] | None = None

    @property
    def end(self) -> int:
        """The physical offset behind the last record that was proposed."""
        return self._end

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the checkpoint can say that the log is on disk."""
        return self._flushed

    def segment_path(self, start: int) -> str:
        """Return the path of the segment that begins at a physical offset."""
        if start < self._old.end:
            return os.path.join(self._old.folder, f"{start:020}")
        return super().segment_path(start)

    def unit_start(self, offset: int) -> int:
        """Return where what a record is in begins: its entry, or in the old log itself."""
        return offset if offset < self._old.end else offset - self.lead

    # ---- terms ---------------------------------------------------------------------------------

    def lead_from(self, term: int, end: int) -> None:
        """Take records, in a term, behind a physical offset. Needs the append lock."""
        self._end = self._committed = end
        self.term = LeaderTerm(term)

    def stop_leading(self) -> None:
        """Take no more records, and tell those who wait. All that is known as committed is seen."""
        with self._changed:
            if self.term is not None:
                self.term.end = self._applied
                self.term = None
            self._changed.notify_all()
        self._tell()

    def begin_later(self, begin: int) -> None:
        """Let the log of a member that had none begin where its leader's does.

        Args:
            begin: physical offset of the first segment.
        """
        assert begin >= self.published.offset, "a log does not lose what was seen"
        self._begins_at(begin)
        self._flushed = self._applied = begin
        self.published.move(begin)

    def show(self, end: int) -> None:
        """Let readers see committed records up to a physical offset: they go into queues next."""
        self.published.move(end)

    def see(self, end: int, committed: int) -> None:
        """Take note of how far the log is applied, and tell those who wait for that.

        Args:
            end: physical offset up to which it is in queues and index.
            committed: physical offset up to which it is committed; a batch may begin before that
                and end behind it.
        """
        with self._changed:
            self._committed, self._applied = committed, end
            self.published.move(end)
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        watcher = self.watcher
        if watcher is not None:
            watcher()

    def is_decided(self, term: LeaderTerm, end: int) -> bool:
        """Return whether `wait` would not wait."""
        return term.end is not None or self._applied >= end

    def wait(self, term: LeaderTerm, end: int, timeout: float) -> bool | None:
        """Wait until what was proposed in a term is committed, and in queues and index.

        Args:
            term: the term.
            end: physical offset behind it.
            timeout: seconds.

        Returns:
            Whether it is; None if that is not known any more, because the term is over.
        """
        with self._changed:
            is_over = self._changed.wait_for(lambda: self.is_decided(term, end), timeout)
        if term.end is not None:
            return True if term.end >= end else None
        return is_over

    def next_block(self) -> ReservedBlock:
        """Return the place of a block behind what was proposed. Needs the append lock."""
        return ReservedBlock(self._files, self._end, self._end)

    # ---- appending -----------------------------------------------------------------------------

    def reserve_until(self, end: int) -> None:
        """Do nothing: the driver creates the segments."""

    def expect(self, size: int) -> None:
        """Do nothing: the driver creates the segments."""

    def remove_unused(self) -> None:
        """Do nothing: no segment is created before it is needed."""

    def write(self, placement: Placement, data: U1, starts: I8) -> None:
        """Propose records, each as an entry. They are in the log when they are committed.

        Raises:
            RefusedError: nothing was proposed: this member does not lead, or too much is not
                committed yet.
        """
        term = self.term
        if term is None:
            raise RefusedError(
                "The store has just ceased to lead its group, and accepts no messages.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
        assert placement.begin == self._end, (
            f"records were placed at {placement.begin}, and the last one ends at {self._end}"
        )
        if self._pending > _MOST_PENDING:
            raise RefusedError(
                f"More than {_MOST_PENDING} bytes wait for a quorum of the group. Try again.",
                PutStatus.OS_PAGECACHE_BUSY,
            )
        for number, records in _chunks(data, starts):
            self._propose_chunk(term, placement, number, records)

    def write_in_turns(self, term: LeaderTerm, placement: Placement, data: U1, starts: I8) -> bool:
        """Propose a portion of a batch as fast as it is committed, so that others have their turn.

        Needs the append lock.

        Returns:
            Whether all of it is proposed; False if the term is over.
        """
        assert placement.begin == self._end, "a portion of a batch does not follow the last one"
        for number, records in _chunks(data, starts):
            with self._changed:
                self._changed.wait_for(
                    lambda: term.end is not None or self._pending < _BATCH_PENDING
                )
            if term.end is not None:
                return False
            self._propose_chunk(term, placement, number, records)
        return True

    def _propose_chunk(
        self, term: LeaderTerm, placement: Placement, number: int, records: Sequence[bytes]
    ) -> None:
        begin = int(placement.physical[number])
        last = number + len(records) - 1
        self._propose(term.number, begin - self.lead, records)
        self._end = int(placement.physical[last]) + len(records[-1])

    @property
    def _pending(self) -> int:
        return self._end - self._committed

    # ---- the rest ------------------------------------------------------------------------------

    def flush(self) -> int:
        """Do nothing: what is applied is on the disk of a quorum, and of this member.

        Returns:
            The physical offset up to which it is.
        """
        self._flushed = self._applied
        return self._flushed

    def expire(self, start: int) -> None:
        """Remove the log's first segment; see `CommitLogWriter.expire`."""
        if start < self._old.end:
            remove_file(self.segment_path(start))
        else:
            self._remove(start)
        self._begins_at(start + self.segment_size)

    def close(self) -> None:
        """Close all files."""
        self._files.close()
        self._segments.close()


def _chunks(data: U1, starts: I8) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the records in chunks: the number of the first, and the records."""
    if not len(starts):
        return
    edges = [*starts.tolist(), len(data)]
    of_chunk = (starts - starts[0]) // _CHUNK
    firsts = [0, *(np.flatnonzero(np.diff(of_chunk)) + 1).tolist(), len(starts)]
    for first, stop in pairwise(firsts):
        yield first, [data[at:to].tobytes() for at, to in pairwise(edges[first : stop + 1])]
