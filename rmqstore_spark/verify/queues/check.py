"""Checks the queue entries that no record matched during the walk over the log."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.consumequeue import ENTRY_SIZE
from rmqstore_spark.layout.spans import I8, string_array
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.queue import Entries, Queue
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.queues.entries import entry_place
from rmqstore_spark.verify.queues.judge import EntryJudge, Verdict
from rmqstore_spark.verify.snapshot import EntriesUnit, Snapshot

__all__ = ["check_entries"]

_BLOCK: Final = 1 << 16

_KINDS: Final = {
    Verdict.UNWRITTEN: ("entry-unwritten", 0, "the entry is not written, but later ones are"),
    Verdict.FILLER: ("entry-filler", 0, "the entry is a filler, but not at the queue's beginning"),
    Verdict.EXPIRED: ("entry-outside", 0, "the entry points before the log's beginning"),
    Verdict.OUTSIDE: ("entry-outside", 0, "the entry points past the log's end"),
    Verdict.NO_RECORD: ("entry-record", 0, "no record begins where the entry points"),
    Verdict.SIZE: ("entry-size", 8, "the entry's size does not match its record"),
    Verdict.PENDING: ("entry-pending", 0, "the entry's record is prepared or rolled back"),
    Verdict.CODE: ("tags-code", 12, "the entry's tagsCode does not match its record"),
}


def check_entries(store: Store, snapshot: Snapshot, unit: EntriesUnit, findings: Findings) -> None:
    """Check entries of a queue that no record matched."""
    bounds = snapshot.queues[unit.queue]
    queue = store.queue(bounds.topic, bounds.queue_id)
    checker = _Checker(store, snapshot, queue, findings)
    for first in range(unit.start, unit.end, _BLOCK):
        checker.check(np.arange(first, min(first + _BLOCK, unit.end)))


class _Checker:
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
        at = slots * ENTRY_SIZE
        there = queue.segments.covers(at, np.full(len(at), ENTRY_SIZE))
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
        kind, byte, text = _KINDS[verdict]
        self._findings.each(
            "error", kind, bad,
            lambda row: entry_place(self._queue, int(slots[row]), byte),
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
        at = np.array([claimed * ENTRY_SIZE])
        if not queue.segments.covers(at, np.array([ENTRY_SIZE])).all():
            return theirs
        other = queue.entries(claimed, claimed + 1)
        verdict = self._judge.judge(queue, at // ENTRY_SIZE, other)
        taken = verdict[0] == Verdict.RIGHT and int(other["physicalOffset"][0]) != offset
        return theirs if taken else mine
