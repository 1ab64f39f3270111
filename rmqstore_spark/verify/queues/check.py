"""Checks the files of queues, entries outside of their offsets, and those without a record."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries
from rmqstore_spark.layout.spans import I8, string_array
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.queues.judge import EntryJudge, Verdict, entry_place
from rmqstore_spark.verify.snapshot import EntriesUnit, QueueBounds, QueuesUnit, Snapshot
from rmqstore_spark.verify.store_files import check_segments

_ENTRIES_AT_ONCE: Final = 1 << 12
_UNMATCHED_AT_ONCE: Final = 1 << 16
_FARTHEST: Final = 1 << 46  # bytes: no log is longer

_KINDS: Final = {
    Verdict.UNWRITTEN: ("entry-unwritten", "the entry is not written, but later ones are"),
    Verdict.FILLER: ("entry-filler", "the entry is a filler, but not at the queue's beginning"),
    Verdict.EXPIRED: ("entry-outside", "the entry points before the log's beginning"),
    Verdict.OUTSIDE: ("entry-outside", "the entry points past the log's end"),
    Verdict.NO_RECORD: ("entry-record", "no record begins where the entry points"),
    Verdict.SIZE: ("entry-size", "the entry's size does not match its record"),
    Verdict.PENDING: ("entry-pending", "the entry's record is prepared or rolled back"),
    Verdict.CODE: ("tags-code", "the entry's tagsCode does not match its record"),
}
_FIELDS: Final = {Verdict.SIZE: "size", Verdict.CODE: "tagsCode"}


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
        check_segments(
            queue.segments, findings, "queue-file", unit=queue.format.size, growing=growing
        )
        if len(queue.ext):
            check_segments(queue.ext, findings, "queue-file", growing=growing)
        ends = _QueueEnds(queue, bounds, judge, findings, snapshot)
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
        snapshot: Snapshot,
    ) -> None:
        self._queue = queue
        self._bounds = bounds
        self._judge = judge
        self._findings = findings
        self._killed = snapshot.killed
        self._file_end = snapshot.file_end
        self._name = f"{queue.topic}/{queue.queue_id}"

    def check_before(self) -> None:
        """Check that every entry before the minimum offset is a filler or has expired."""
        slot = self._queue.first_slot
        while slot < self._bounds.min_offset:
            entries = self._read(slot, min(slot + _ENTRIES_AT_ONCE, self._bounds.min_offset))
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
        past, newest, named = 0, 0, 0
        while True:
            entries = self._read(slot, slot + _ENTRIES_AT_ONCE)
            table = entries.view(np.uint8).reshape(-1, self._queue.format.size)
            written = np.flatnonzero(table.any(axis=1))
            if not len(written):
                break
            slots = slot + written
            verdict = self._judge.judge(self._queue, slots, entries[written])
            if (verdict == Verdict.RIGHT).any():
                self._report_hole(int(slots[np.argmax(verdict == Verdict.RIGHT)]))
                return
            first = int(slots[0]) if first < 0 else first
            stale += len(written)
            rows, end = _past_the_files(entries[written], self._file_end)
            if end:
                past, newest, named = past + len(rows), max(newest, end), int(slots[rows[-1]])
            slot += len(entries)
        if past:
            self._findings.error(
                "log-end", entry_place(self._queue, named),
                f"{past} entries past the end of {self._name} ({self._bounds.max_offset}) name "
                f"records up to physical offset {newest}, but the files of the log end at "
                f"{self._file_end}: the log has lost its last files",
            )  # fmt: skip
            stale -= past
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
        size = self._queue.format.size
        try:
            data = self._queue.segments.read(start * size, (end - start) * size)
        except (SegmentExpiredError, CorruptStoreError):
            data = b""
        return self._queue.format.decode(data)


def _past_the_files(entries: Entries, file_end: int) -> tuple[I8, int]:
    """Return which entries name records past the end of a log's files, and the last one's end.

    Entries that no record can have are garbage, and left out.
    """
    offsets, sizes = entries["physicalOffset"].astype(np.int64), entries["size"].astype(np.int64)
    possible = (offsets >= 0) & (offsets < _FARTHEST)
    possible &= (sizes >= MIN_RECORD_SIZE) & (sizes <= MAX_RECORD_SIZE)
    rows = np.flatnonzero(possible & (offsets + sizes > file_end))
    return rows, int((offsets[rows] + sizes[rows]).max(initial=0))


def check_entries(store: Store, snapshot: Snapshot, unit: EntriesUnit, findings: Findings) -> None:
    """Check entries of a queue that no record matched."""
    bounds = snapshot.queues[unit.queue]
    queue = store.queue(bounds.topic, bounds.queue_id)
    checker = _UnmatchedEntries(store, snapshot, queue, findings)
    for first in range(unit.start, unit.end, _UNMATCHED_AT_ONCE):
        checker.check(np.arange(first, min(first + _UNMATCHED_AT_ONCE, unit.end)))


class _UnmatchedEntries:
    """Checks entries of one queue."""

    def __init__(self, store: Store, snapshot: Snapshot, queue: Queue, findings: Findings) -> None:
        self._store = store
        self._snapshot = snapshot
        self._queue = queue
        self._findings = findings
        self._judge = EntryJudge(store.log, snapshot)

    def check(self, slots: I8) -> None:
        """Check the entries of consecutive offsets."""
        queue, findings = self._queue, self._findings
        size = queue.format.size
        there = queue.segments.covers(slots * size, np.full(len(slots), size))
        if not there.all():
            first = int(slots[np.argmin(there)])
            findings.error(
                "entry-unwritten", entry_place(queue, first),
                f"no file holds {int(np.count_nonzero(~there))} entries of {self._name}, from "
                f"offset {first} on",
            )  # fmt: skip
        for run in np.split(slots[there], np.flatnonzero(np.diff(slots[there]) != 1) + 1):
            if len(run):
                self._check_run(run, queue.entries(int(run[0]), int(run[-1]) + 1))

    @property
    def _name(self) -> str:
        return f"{self._queue.topic}/{self._queue.queue_id}"

    def _check_run(self, slots: I8, entries: Entries) -> None:
        queue, findings = self._queue, self._findings
        verdict = self._judge.judge(queue, slots, entries)
        findings.counts["entries"] += int(np.count_nonzero(verdict == Verdict.RIGHT))
        findings.counts["entriesOfDamagedRecords"] += int(
            np.count_nonzero(verdict == Verdict.DAMAGED)
        )
        offsets = entries["physicalOffset"]
        for kind in _KINDS:
            self._say(kind, verdict == kind, slots, offsets)
        findings.each(
            "error", "entry-identity", verdict == Verdict.STRANGER,
            lambda row: self._guilty(int(slots[row]), int(offsets[row])),
            lambda row: f"the entry of offset {int(slots[row])} of {self._name} points to the "
            f"record at {int(offsets[row])}, which states {self._identity(int(offsets[row]))}",
        )  # fmt: skip

    def _say(self, verdict: Verdict, bad: npt.NDArray[np.bool_], slots: I8, offsets: I8) -> None:
        kind, text = _KINDS[verdict]
        field = _FIELDS.get(verdict, "physicalOffset")
        self._findings.each(
            "error", kind, bad,
            lambda row: entry_place(self._queue, int(slots[row]), field),
            lambda row: f"{text} ({self._name}, offset {int(slots[row])}, points to "
            f"{int(offsets[row])})",
        )  # fmt: skip

    def _identity(self, offset: int) -> str:
        record = record_head(self._store.log, offset)
        if record is None:
            return "none"
        topic = string_array(record.topic)[0].as_py()
        return f"offset {int(record.queue_offset[0])} of {topic}/{int(record.queue_id[0])}"

    def _guilty(self, slot: int, offset: int) -> Place:
        """Return the place of the damage if an entry and its record disagree.

        The record is damaged if the offset that it states does not exist, or rightly belongs to
        another record. Otherwise the entry is damaged.
        """
        mine = entry_place(self._queue, slot)
        record = record_head(self._store.log, offset)
        if record is None:
            return mine
        topic, queue_id = string_array(record.topic)[0].as_py(), int(record.queue_id[0])
        number = self._snapshot.numbers.get((topic, queue_id))
        claimed = int(record.queue_offset[0])
        theirs = self._store.log.place(offset)
        if number is None:
            return theirs
        bounds = self._snapshot.queues[number]
        if not bounds.min_offset <= claimed < bounds.max_offset:
            return theirs
        queue = self._store.queue(topic, queue_id)
        slots, size = np.array([claimed]), queue.format.size
        if not queue.segments.covers(slots * size, np.array([size])).all():
            return theirs
        other = queue.entries(claimed, claimed + 1)
        verdict = self._judge.judge(queue, slots, other)
        taken = verdict[0] == Verdict.RIGHT and int(other["physicalOffset"][0]) != offset
        return theirs if taken else mine
