"""Compares the records of the log with their queue entries, which are read ahead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.kernel.reference.entries import VOID_CODE
from rmqstore_spark.layout.queues.format import Entries, QueueFormat
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.log_batch import LogBatch
from rmqstore_spark.verify.queues.expected import EntryMaker, Expected, tags_codes
from rmqstore_spark.verify.queues.judge import entry_place, wrong_units
from rmqstore_spark.verify.snapshot import Snapshot

_HELD: Final = 1 << 20  # entries of all queues together
_FEWEST: Final = 64  # of a queue
_MOST: Final = 16_384
_NO_SLOT: Final = 1 << 58

Mask = npt.NDArray[np.bool_]


class QueueMatcher:
    """Looks up the entry of each record, for the batches of the log in order.

    An entry that names its record is covered. The other entries within a queue's offsets are
    checked after the whole log was walked. So a record without an entry is reported here only if
    its offset lies outside of the queue's offsets.

    Args:
        snapshot: the snapshot of the store.
        queue_format: the format of all queues.
        queue: returns a queue by its number.
        findings: collects the problems.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        queue_format: QueueFormat,
        queue: Callable[[int], Queue],
        findings: Findings,
    ) -> None:
        self._format = queue_format
        self._snapshot = snapshot
        self._queue = queue
        self._findings = findings
        self._entry_maker = EntryMaker(snapshot.numbers)
        self._pool = _EntryPool(
            queue_format,
            len(snapshot.queues),
            lambda n: queue(n).segments,
            growing=snapshot.being_written,
        )
        self._begins: dict[int, int] = {}
        self._homeless: dict[tuple[str, int, bool], list[int]] = {}
        self._records = 0
        self._last_void = -1

    def check(self, batch: LogBatch) -> None:
        """Match the records of a batch."""
        expected = self._entry_maker.expected(batch)
        codes, odd_delay = tags_codes(batch, self._snapshot.delays)
        self._findings.each(
            "error", "delay", odd_delay, batch.place,
            "the DELAY of a delayed message is not a number: a starting broker ends the log here",
        )  # fmt: skip
        if not self._snapshot.queues:
            return
        self._records += len(batch)
        homeless = expected.queue < 0
        if homeless.any():
            gone = self._deleted(batch)[expected.rows]
            self._note_homeless(batch, expected, homeless & ~gone, deleted=False)
            self._note_homeless(batch, expected, homeless & gone, deleted=True)
            expected = expected.take(np.flatnonzero(~homeless))
        self._match(batch, expected, codes[expected.rows])

    def _match(self, batch: LogBatch, expected: Expected, codes: I8) -> None:
        rows, queue, slots = expected.rows, expected.queue, expected.slots
        entries, same = self._look_up(batch, expected)
        offsets = batch.offsets[rows]
        sizes = batch.records.store_size[rows]
        fresh = self._fresh(batch)[rows]
        self._findings.each(
            "error", "entry-size", same & (entries["size"] != sizes),
            lambda m: entry_place(self._queue(int(queue[m])), int(slots[m]), "size"),
            lambda m: f"the entry states {int(entries['size'][m])} bytes, but its record at "
            f"{int(offsets[m])} has {int(sizes[m])}",
        )  # fmt: skip
        stated = entries["tagsCode"].astype(np.int64)
        unlike = same & (stated != codes)
        void = unlike & (stated == VOID_CODE)
        if void.any():
            self._keep_void(batch, np.unique(rows[void]))
            self._findings.counts["voidEntries"] += int(np.count_nonzero(void))
            unlike &= ~void
        if unlike.any():
            times = batch.records.store_timestamp[rows]
            self._check_codes(queue, slots, stated, codes, times, unlike, fresh)
        self._cover(queue, slots, same, ordered=expected.light == len(rows))
        if not same.all():
            self._unmatched(batch, expected, entries, ~same, fresh)

    def _look_up(self, batch: LogBatch, expected: Expected) -> tuple[Entries, Mask]:
        """Return the entries in the slots of records, and which of them name their records."""
        entries = self._pool.look_up(expected.queue, expected.slots)
        same: Mask = entries["physicalOffset"] == batch.offsets[expected.rows]
        same &= entries["size"] > 0
        if len(same) and batch.offsets[0] == 0:  # fillers have that place too
            same &= ~self._format.is_filler(entries)
        return entries, same

    def _keep_void(self, batch: LogBatch, rows: I8) -> None:
        """Keep which records of a batch have void entries: what is torn is known later."""
        before = self._records - len(batch)
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for run in np.split(rows, breaks):
            is_continued = before + int(run[0]) == self._last_void + 1
            first, last = batch.offsets[run[[0, -1]]].tolist()
            self._findings.add_void(first, last, continued=is_continued)
            self._last_void = before + int(run[-1])

    def count_shown(self, batch: LogBatch, stop: int) -> int:
        """Return how many records of a batch before a physical offset have entries, not void."""
        expected = self._entry_maker.expected(batch)
        before = (expected.queue >= 0) & (batch.offsets[expected.rows] < stop)
        expected = expected.take(np.flatnonzero(before))
        entries, same = self._look_up(batch, expected)
        return int(np.count_nonzero(same & ~self._format.is_void(entries)))

    def _fresh(self, batch: LogBatch) -> Mask:
        """Return the records whose entries a killed broker may not have flushed."""
        if not self._snapshot.killed:
            return np.zeros(len(batch), np.bool_)
        fresh: Mask = batch.records.store_timestamp > self._snapshot.vouched_time
        return fresh

    def _deleted(self, batch: LogBatch) -> Mask:
        """Return the records that were deleted with their topics: they need no entries."""
        if not self._snapshot.deleted:
            return np.zeros(len(batch), np.bool_)
        codes = batch.topic_codes
        known = self._snapshot.deleted
        ends = np.array([known.get(name or "", 0) for name in batch.topics], np.int64)
        deleted: Mask = batch.offsets < ends[codes]
        return deleted

    def _check_codes(
        self, queue: I4, slots: I8, stated: I8, codes: I8, times: I8, unlike: Mask, fresh: Mask
    ) -> None:
        """Check tagsCodes that differ from the record's: they may be addresses of units."""
        addressed = unlike & self._format.in_units(stated)
        wrong = unlike & ~addressed
        for number in np.unique(queue[addressed]).tolist():
            rows = np.flatnonzero(addressed & (queue == number))
            owner = self._queue(number)
            wrong[rows] = wrong_units(owner, stated[rows], codes[rows], times[rows])
            addressed[rows] = len(owner.ext) > 0  # without units it only looks like an address
        self._findings.counts["extensionUnits"] += int(np.count_nonzero(addressed & ~wrong))

        def place(m: int) -> Place:
            return entry_place(self._queue(int(queue[m])), int(slots[m]), "tagsCode")

        # A crash can lose the page of a unit, or the second of two pages that an entry lies on.
        lost = wrong & fresh & (addressed | (stated == 0))
        self._findings.each(
            "note", "undispatched", lost, place,
            "the entry's tagsCode is lost: the broker restores it when it starts again",
        )  # fmt: skip
        wrong &= ~lost
        self._findings.each(
            "error", "ext-unit", wrong & addressed, place,
            lambda m: f"the entry's tagsCode {int(stated[m])} is not the address of an "
            "extension unit of its record",
        )  # fmt: skip
        self._findings.each(
            "error", "tags-code", wrong & ~addressed, place,
            lambda m: f"the entry's tagsCode is {int(stated[m])}, its record's {int(codes[m])}",
        )  # fmt: skip

    def _cover(self, queue: I4, slots: I8, same: Mask, *, ordered: bool) -> None:
        owners, numbers = queue[same], slots[same]
        # NumPy's stable sort is linear for 16-bit numbers, which suffice for fewer than 32,768
        # queues.
        keys = owners.astype(np.int16) if len(self._snapshot.queues) < 1 << 15 else owners
        order = np.argsort(keys, kind="stable") if ordered else np.lexsort((numbers, owners))
        self._findings.queues.add_numbers(owners[order], numbers[order])
        self._findings.counts["entries"] += len(owners)

    def _unmatched(
        self, batch: LogBatch, expected: Expected, entries: npt.NDArray[np.void], bad: Mask,
        fresh: Mask,
    ) -> None:  # fmt: skip
        """Report records whose slot does not name them."""
        rows, queue, slots = expected.rows, expected.queue, expected.slots
        inside = slots >= self._snapshot.min_offsets[queue]
        inside &= slots < self._snapshot.max_offsets[queue]
        live = self._format.is_message(entries)
        offsets = batch.offsets[rows]
        older = bad & ~live & (slots >= self._snapshot.min_offsets[queue])
        for number in np.unique(queue[older]).tolist():
            older &= (queue != number) | (offsets < self._begin_of(number))
        # The slot may rightly belong to a later record: this is decided after the last batch.
        later = bad & live & inside & (entries["physicalOffset"] > offsets)
        for m in np.flatnonzero(later).tolist():
            self._findings.displace(int(queue[m]), int(slots[m]), int(offsets[m]))
        self._findings.each(
            "note", "older-than-queue", older, lambda m: batch.place(int(rows[m])),
            lambda m: older_text(self._name(int(queue[m])), int(slots[m])),
        )  # fmt: skip
        missing = bad & ~older & ~inside
        gone = missing & self._deleted(batch)[rows]
        gone[expected.light :] = False  # their topics are others
        self._findings.each(
            "note", "older-than-queue", gone, lambda m: batch.place(int(rows[m])),
            lambda m: f"the record of offset {int(slots[m])} of {self._name(int(queue[m]))} was "
            "deleted with its topic",
        )  # fmt: skip
        missing &= ~gone
        waiting = missing & fresh
        if self._snapshot.being_written:  # a broker may still dispatch it
            missing &= slots < self._snapshot.max_offsets[queue]

        def place(m: int) -> Place:
            at = entry_place(self._queue(int(queue[m])), int(slots[m]))
            return batch.place(int(rows[m])) if at[1] is None else at

        def text(m: int) -> str:
            return (
                f"no entry of {self._name(int(queue[m]))} at offset {int(slots[m])} names the "
                f"record at {int(offsets[m])} of the log"
            )

        self._findings.each("error", "missing-entry", missing & ~waiting, place, text)
        self._findings.each(
            "note", "undispatched", waiting, place,
            lambda m: text(m) + ": the broker adds it when it starts again",
        )  # fmt: skip

    def _begin_of(self, number: int) -> int:
        """Return the physical offset of a queue's first record; 0 if it cannot be read."""
        if number not in self._begins:
            queue, bounds = self._queue(number), self._snapshot.queues[number]
            self._begins[number] = 0
            if bounds.max_offset > bounds.min_offset:
                # The check of the entry reports its damage.
                with suppress(SegmentExpiredError, CorruptStoreError):
                    self._begins[number] = queue.physical_offset(bounds.min_offset)
        return self._begins[number]

    def _name(self, number: int) -> str:
        bounds = self._snapshot.queues[number]
        return f"{bounds.topic}/{bounds.queue_id}"

    def _note_homeless(
        self, batch: LogBatch, expected: Expected, homeless: Mask, *, deleted: bool
    ) -> None:
        """Count records of queues that the store does not have."""
        own = homeless[: expected.light]
        self._findings.counts["missingLightQueueEntries"] += int(
            np.count_nonzero(homeless[expected.light :])
        )
        rows = expected.rows[: expected.light][own]
        keys = batch.topic_codes[rows].astype(np.int64) << 32 | batch.records.queue_id[rows]
        for key, first in zip(*np.unique(keys, return_index=True), strict=True):
            queue_id = int(batch.records.queue_id[rows[first]])
            name = batch.topics[int(key) >> 32] or "", queue_id, deleted
            mine = rows[keys == key]
            fresh = int(np.count_nonzero(self._fresh(batch)[mine]))
            known = self._homeless.setdefault(name, [int(batch.offsets[rows[first]]), 0, 0])
            known[1] += len(mine)
            known[2] += fresh

    def finish(self, place: Callable[[int], Place]) -> None:
        """Report the problems that are known only after the last batch.

        Args:
            place: returns the file of a physical offset and the offset in it.
        """
        for (topic, queue_id, deleted), (offset, count, fresh) in self._homeless.items():
            if (topic, queue_id) in self._snapshot.batch_queues:
                self._findings.counts["batchQueueRecords"] += count
                continue
            text = f"no queue {topic}/{queue_id} for {count} record(s) from here on"
            configured = self._snapshot.configured_topics
            if configured is not None and topic not in configured:
                text += "; topics.json does not name the topic: it was deleted"
                self._findings.note("missing-queue", place(offset), text)
            elif deleted:
                text += "; they were deleted with the topic, which is there again"
                self._findings.note("missing-queue", place(offset), text)
            elif fresh == count or self._snapshot.being_written:
                text += "; they may not have been dispatched yet"
                self._findings.note("missing-queue", place(offset), text)
            else:
                self._findings.error("missing-queue", place(offset), text)


def older_text(queue: str, slot: int) -> str:
    """Return the text of the problem of a record that is older than its queue."""
    return f"the record of offset {slot} is older than its queue {queue}, which was created again"


class _EntryPool:
    """Holds some entries of each queue: at most a million in all, or 64 of each.

    Args:
        queue_format: the format of all queues.
        queues: number of queues.
        segments: returns the files of a queue by its number.
        growing: a broker writes the queues, and may have added files after they were listed.
    """

    def __init__(
        self,
        queue_format: QueueFormat,
        queues: int,
        segments: Callable[[int], Segments],
        *,
        growing: bool = False,
    ) -> None:
        self._dtype, self._size = queue_format.dtype, queue_format.size
        self._segments = segments
        self._growing = growing
        self._room = min(_MOST, max(_FEWEST, _HELD // max(1, queues)))
        # `np.empty` takes memory only for the pages that are written.
        self._held = np.empty((queues, self._room), self._dtype)
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
        found = np.zeros(len(queue), self._dtype)
        todo = np.arange(len(queue))
        while len(todo):
            owners, wanted = queue[todo], slots[todo]
            at = wanted - self._first[owners]
            held = (at >= 0) & (at < self._count[owners])
            found[todo[held]] = self._flat[owners[held].astype(np.int64) * self._room + at[held]]
            todo = todo[~held]
            if len(todo):
                todo = todo[~self._refill(queue, slots, todo)]
        return found

    def _held_ones(self, queue: I4, slots: I8) -> Entries | None:
        """Return the entries, if the pool holds all of them."""
        at = slots - self._first[queue]
        if len(at) and (at.min() < 0 or (at >= self._count[queue]).any()):
            return None
        return self._flat[queue.astype(np.int64) * self._room + at]

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
                at = np.where(inside, wanted, 0) * self._size
                there = self._segments(owner).covers(at, np.full(len(at), self._size))
                dead[rows] = ~(inside & there)
                dead[row] = True
        return dead

    def _read(self, owner: int, slot: int) -> int:
        """Read entries from a slot on. Return the number of entries read."""
        segments = self._segments(owner)
        if self._growing and slot * self._size >= segments.end_offset:
            segments.refresh()
        target = self._held[owner].view(np.uint8)
        filled = 0
        try:
            while filled < len(target):
                got = segments.read_into(slot * self._size + filled, target[filled:])
                filled += got
        except (SegmentExpiredError, CorruptStoreError):
            pass  # the files end here
        return filled // self._size
