"""Follows queue entries to their records, if the walk over the log did not match them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.layout.constants import TRANSACTION_COMMIT_TYPE, TRANSACTION_NOT_TYPE
from rmqstore_spark.layout.queues.format import Entries
from rmqstore_spark.layout.record.columns import Identity
from rmqstore_spark.layout.record.dispatches import belongs_to
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import I8, text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.verify.findings import Flaws, Place
from rmqstore_spark.verify.log_batch import LogBatch, TopicNumbers, read_batches
from rmqstore_spark.verify.queues.expected import tags_codes
from rmqstore_spark.verify.snapshot import Snapshot


class Verdict(IntEnum):
    """The result of the check of an entry."""

    RIGHT = 0
    UNWRITTEN = 1
    FILLER = 2
    EXPIRED = 3
    OUTSIDE = 4
    DAMAGED = 5
    NO_RECORD = 6
    SIZE = 7
    STRANGER = 8
    PENDING = 9
    CODE = 10


class EntryJudge:
    """Follows entries to their records, and judges them.

    Args:
        log: the log that the entries point into.
        snapshot: the snapshot of the store.
    """

    def __init__(self, log: CommitLog, snapshot: Snapshot) -> None:
        self._log = log
        self._snapshot = snapshot
        self._flaws = Flaws(snapshot.flaws)
        self._topics = TopicNumbers()

    def judge(self, queue: Queue, slots: I8, entries: Entries) -> npt.NDArray[np.int8]:
        """Return a `Verdict` on each of n entries of a queue.

        Args:
            queue: the queue.
            slots: n queue offsets.
            entries: the n entries at these offsets.
        """
        offsets = entries["physicalOffset"].astype(np.int64)
        sizes = entries["size"].astype(np.int32)
        verdict = np.full(len(slots), Verdict.RIGHT, np.int8)
        left = np.ones(len(slots), np.bool_)

        def settle(which: npt.NDArray[np.bool_], as_what: Verdict) -> None:
            verdict[left & which] = as_what
            left[which] = False

        settle(queue.format.is_filler(entries), Verdict.FILLER)
        settle((offsets < 0) | (sizes <= 0), Verdict.UNWRITTEN)
        settle(offsets < self._snapshot.begin, Verdict.EXPIRED)
        settle(self._flaws.hold(offsets), Verdict.DAMAGED)
        settle(offsets >= self._snapshot.end, Verdict.OUTSIDE)
        settle(~self._log.covers(offsets, sizes), Verdict.NO_RECORD)
        rows = np.flatnonzero(left)
        rows = rows[np.argsort(offsets[rows], kind="stable")]
        for part in read_batches(rows, sizes):
            verdict[part] = self._follow(queue, slots[part], entries[part])
        for row in np.flatnonzero(verdict == Verdict.NO_RECORD).tolist():
            if record_head(self._log, int(offsets[row])) is not None:
                verdict[row] = Verdict.SIZE
        return verdict

    def _follow(self, queue: Queue, slots: I8, entries: Entries) -> npt.NDArray[np.int8]:
        """Return the verdicts on entries that point into the log, ascending by physical offset."""
        offsets = entries["physicalOffset"].astype(np.int64)
        sizes = entries["size"].astype(np.int32)
        buffer, positions = self._log.read_entries(offsets, sizes, None)
        records = decode_records(buffer, positions, sizes)
        sound = (records.status == 0) & (records.physical_offset == offsets)
        verdict = np.full(len(slots), Verdict.NO_RECORD, np.int8)
        rows = np.flatnonzero(sound)
        if not len(rows):
            return verdict
        batch = LogBatch(self._log, records.take(rows), offsets[rows], self._topics)
        verdict[rows] = self._compare(queue, slots[rows], entries[rows], batch)
        return verdict

    def _compare(
        self, queue: Queue, slots: I8, entries: Entries, batch: LogBatch
    ) -> npt.NDArray[np.int8]:
        """Return the verdicts on entries that point to records."""
        records = batch.records
        identity = Identity(
            text_pool([queue.topic]),
            np.array([queue.queue_id], np.int32),
            np.zeros(len(slots), np.int32),
            slots,
        )
        live = batch.transaction == TRANSACTION_NOT_TYPE
        live |= batch.transaction == TRANSACTION_COMMIT_TYPE
        codes, _ = tags_codes(batch, self._snapshot.delays)
        stated = entries["tagsCode"].astype(np.int64)
        # The walk over the log has kept the void entries that name their records (`void`).
        unlike = (stated != codes) & ~queue.format.is_void(entries)
        addressed = np.flatnonzero(unlike & queue.format.in_units(stated))
        if len(addressed):
            times = records.store_timestamp[addressed]
            unlike[addressed] = wrong_units(queue, stated[addressed], codes[addressed], times)
        checks = [
            (~belongs_to(records, identity), Verdict.STRANGER),
            (~live, Verdict.PENDING),
            (records.store_size != entries["size"], Verdict.SIZE),
            (unlike, Verdict.CODE),
        ]
        return np.select(
            [bad for bad, _ in checks], [what for _, what in checks], Verdict.RIGHT
        ).astype(np.int8)


def entry_place(queue: Queue, slot: int, field: str = "physicalOffset") -> Place:
    """Return the file and offset of an entry; the queue's folder if no file holds the entry.

    Args:
        slot: the entry's offset in its queue.
        field: the field of the entry.
    """
    at = slot * queue.format.size
    try:
        segment = queue.segments.locate(at)
    except (SegmentExpiredError, CorruptStoreError):
        return ", ".join(queue.segments.folders), None
    return segment.path, at - segment.start + queue.format.field_at(field)


def wrong_units(queue: Queue, addresses: I8, codes: I8, times: I8) -> npt.NDArray[np.bool_]:
    """Return which addresses do not lead to the extension unit of their record.

    Args:
        queue: the queue whose entries hold the addresses.
        addresses: n addresses that entries hold in place of a tagsCode.
        codes: n tagsCodes of the records.
        times: n storeTimestamps of the records.
    """
    wrong = np.ones(len(addresses), np.bool_)
    rows, heads = queue.unit_heads(addresses)
    wrong[rows] = (heads["tagsCode"] != codes[rows]) | (heads["storeTimestamp"] != times[rows])
    return wrong
