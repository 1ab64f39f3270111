"""Checks the files of queues, and the entries before and after a queue's offsets."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.consumequeue import ENTRY_SIZE, decode_entries
from rmqstore_spark.reader.queue import Entries, Queue
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.log_files import check_segments
from rmqstore_spark.verify.queues.entries import entry_place
from rmqstore_spark.verify.queues.judge import EntryJudge, Verdict
from rmqstore_spark.verify.snapshot import QueueBounds, QueuesUnit, Snapshot

__all__ = ["check_queues"]

_BLOCK: Final = 1 << 12


def check_queues(store: Store, snapshot: Snapshot, unit: QueuesUnit, findings: Findings) -> None:
    """Check the files of some queues, and their entries outside of the queues' offsets.

    `QueueMatcher` compares the entries inside with the records of the log.
    """
    judge = EntryJudge(store.log, snapshot)
    for bounds in snapshot.queues[unit.first : unit.last]:
        queue = store.queue(bounds.topic, bounds.queue_id)
        findings.counts["queues"] += 1
        findings.counts["queueFiles"] += len(queue.segments)
        growing = snapshot.being_written
        check_segments(queue.segments, findings, "queue-file", unit=ENTRY_SIZE, growing=growing)
        if queue.ext is not None:
            check_segments(queue.ext, findings, "queue-file", growing=growing)
        ends = _QueueEnds(queue, bounds, judge, findings, killed=snapshot.killed)
        ends.check_before()
        if not snapshot.being_written:
            ends.check_behind()


class _QueueEnds:
    """The entries in a queue's files that lie outside of its offsets."""

    def __init__(
        self,
        queue: Queue,
        bounds: QueueBounds,
        judge: EntryJudge,
        findings: Findings,
        *,
        killed: bool,
    ) -> None:
        self._queue = queue
        self._bounds = bounds
        self._judge = judge
        self._findings = findings
        self._killed = killed
        self._name = f"{queue.topic}/{queue.queue_id}"

    def check_before(self) -> None:
        """Check that every entry before the minimum offset is a filler or has expired."""
        slot = self._queue.first_slot
        while slot < self._bounds.min_offset:
            entries = self._read(slot, min(slot + _BLOCK, self._bounds.min_offset))
            if not len(entries):
                return
            self._check_before(slot, entries)
            slot += len(entries)

    def _check_before(self, first: int, entries: Entries) -> None:
        verdict = self._judge.judge(self._queue, np.arange(first, first + len(entries)), entries)
        fillers, expired = verdict == Verdict.FILLER, verdict == Verdict.EXPIRED
        self._findings.counts["fillers"] += int(np.count_nonzero(fillers))
        self._findings.counts["expiredEntries"] += int(np.count_nonzero(expired))
        odd = ~(fillers | expired | (verdict == Verdict.RIGHT) | (verdict == Verdict.DAMAGED))
        self._findings.each(
            "error", "entry-before-begin", odd,
            lambda row: entry_place(self._queue, first + row),
            lambda row: f"the entry of offset {first + row} of {self._name} is before the "
            "queue's beginning, but neither a filler nor expired",
        )  # fmt: skip

    def check_behind(self) -> None:
        """Check that every entry after the last one is unwritten, or left over from a recovery."""
        slot = self._bounds.max_offset
        stale, first = 0, -1
        while True:
            entries = self._read(slot, slot + _BLOCK)
            written = np.flatnonzero(entries.view(np.uint8).reshape(-1, ENTRY_SIZE).any(axis=1))
            if not len(written):
                break
            slots = slot + written
            verdict = self._judge.judge(self._queue, slots, entries[written])
            if (verdict == Verdict.RIGHT).any():
                self._report_hole(int(slots[np.argmax(verdict == Verdict.RIGHT)]))
                return
            first = int(slots[0]) if first < 0 else first
            stale += len(written)
            slot += len(entries)
        if stale:
            self._findings.counts["staleEntries"] += stale
            self._findings.note(
                "stale-entries", entry_place(self._queue, first),
                f"{stale} entries past the end of {self._name} ({self._bounds.max_offset}) "
                "belong to no message; a broker overwrites them",
            )  # fmt: skip

    def _report_hole(self, follower: int) -> None:
        # A power failure loses pages of a queue in any order. A broker's start writes the entries
        # again.
        end = self._bounds.max_offset
        self._findings.say(
            "note" if self._killed else "error", "entry-unwritten", entry_place(self._queue, end),
            f"the entry of offset {end} of {self._name} is unwritten or wrong, but that of "
            f"{follower} is right: readers see the queue end there",
        )  # fmt: skip

    def _read(self, start: int, end: int) -> Entries:
        """Read the entries of a range; fewer if its file ends."""
        try:
            data = self._queue.segments.read(start * ENTRY_SIZE, (end - start) * ENTRY_SIZE)
        except (SegmentExpiredError, CorruptStoreError):
            data = b""
        return decode_entries(data)
