"""Checks index files by themselves, and the entries that no record matched.

A file is checked for its header, slots and chains (docs/format.md, "An IndexFile"). The entries
that no record matched during the walk over the log are followed to their records.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.index.format import (
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_DTYPE,
    SLOT_SIZE,
    IndexEntries,
    decode_entries,
    entry_position,
    slot_position,
)
from rmqstore_spark.layout.index.geometry import nonzero_end
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings, Flaws
from rmqstore_spark.verify.index.match import index_keys
from rmqstore_spark.verify.log_batch import LogBatch, TopicNumbers, read_batches
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import IndexBounds, IndexEntriesUnit, IndexFileUnit, Snapshot

_ENTRIES_AT_ONCE: Final = 1 << 19
_UNMATCHED_AT_ONCE: Final = 1 << 16
_HASH_BITS: Final = 31


def check_index_file(
    store: Store, snapshot: Snapshot, unit: IndexFileUnit, findings: Findings
) -> None:
    """Check that each entry of an index file can be reached by the chain of its slot."""
    bounds = snapshot.index[unit.number]
    findings.counts["indexFiles"] += 1
    if not bounds.slots:
        _check_unreadable(store.directory.files, bounds, snapshot, findings)
        return
    _IndexFile(store.directory.files, bounds, snapshot, findings).check(store.log)


def _check_unreadable(
    files: Files, bounds: IndexBounds, snapshot: Snapshot, findings: Findings
) -> None:
    header = bounds.header
    if header.index_count <= 1:
        if nonzero_end(partial(files.read, bounds.path), HEADER_SIZE, bounds.size) == HEADER_SIZE:
            return  # it has no key yet
        if snapshot.killed:  # its time says nothing about the flush: the header may be older
            bounds = replace(bounds, vouched=False)
    _say(
        findings, bounds, snapshot, "index-header", 0,
        f"the header ({header.index_count} entries) does not match the content for any number of "
        "slots: no key can be looked up",
    )  # fmt: skip


def _severity(bounds: IndexBounds, snapshot: Snapshot) -> Severity:
    return "error" if bounds.vouched and not snapshot.being_written else "note"


def _say(
    findings: Findings, bounds: IndexBounds, snapshot: Snapshot, kind: str, offset: int, text: str
) -> None:
    findings.say(_severity(bounds, snapshot), kind, (bounds.path, offset), text)


class _IndexFile:
    """Checks a file. Holds 4 bytes per slot and 5 bytes per entry in memory."""

    def __init__(
        self, files: Files, bounds: IndexBounds, snapshot: Snapshot, findings: Findings
    ) -> None:
        self._files = files
        self._bounds = bounds
        self._snapshot = snapshot
        self._findings = findings
        self._slots = self._read_slots()
        self._hash_slots = np.full(bounds.keys + 1, -1, np.int32)
        self._reached = np.zeros(bounds.keys + 1, np.bool_)

    def _read_slots(self) -> I4:
        slots = np.zeros(self._bounds.slots, SLOT_DTYPE)
        self._files.read_into(self._bounds.path, HEADER_SIZE, slots.view(np.uint8))
        return slots.astype(np.int32)

    def check(self, log: CommitLog) -> None:
        """Check the file."""
        newest = np.zeros(self._bounds.slots, np.int32)
        unused = self._read(0, 1).view(np.uint8).any()
        at = slot_position(self._bounds.slots)
        self._each(
            "index-entry", np.array([unused]), at, 0, "entry 0 is written, but brokers never use it"
        )
        for first in range(1, self._bounds.keys + 1, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, self._bounds.keys + 1 - first)
            entries = self._read(first, count)
            numbers = np.arange(first, first + count)
            slot = entries["keyHash"] % np.int32(self._bounds.slots)
            self._hash_slots[numbers] = slot
            newest[slot] = numbers  # if a slot occurs several times, the last entry remains
            self._check_entries(numbers, entries, slot)
        self._check_slots(newest)
        self._check_reached()
        self._check_header(log)

    def _read(self, first: int, count: int) -> IndexEntries:
        at = entry_position(self._bounds.slots, first)
        data = self._files.read(self._bounds.path, at, count * ENTRY_SIZE)
        return decode_entries(data.ljust(count * ENTRY_SIZE, b"\0"))

    def _each(
        self, kind: str, bad: npt.NDArray[np.bool_], first: int, step: int, text: str
    ) -> None:
        """Report rows that are `step` bytes apart, the first one at `first`."""
        self._findings.each(
            _severity(self._bounds, self._snapshot), kind, bad,
            lambda row: (self._bounds.path, first + row * step), text,
        )  # fmt: skip

    def _check_entries(self, numbers: I8, entries: IndexEntries, slot: I4) -> None:
        """Check that each entry links to an older one of its slot, or is the oldest."""
        at = entry_position(self._bounds.slots, int(numbers[0]))
        self._each("index-entry", entries["keyHash"] < 0, at, ENTRY_SIZE, "the hash is negative")
        previous = entries["previous"].astype(np.int64)
        # A broker treats a slot that leads past the newest entry as unused, except for the link.
        leads = (previous > 0) & (previous < numbers)
        leads[leads] = self._hash_slots[previous[leads]] == slot[leads]
        self._each(
            "index-chain", (previous != 0) & ~leads, at + 16, ENTRY_SIZE,
            "the link to the previous entry leads out of the chain",
        )  # fmt: skip
        self._reached[previous[leads]] = True

    def _check_slots(self, newest: I4) -> None:
        """Check that each slot leads to its newest entry."""
        # A broker that has the store open may have added newer entries.
        wrong = self._slots < newest if self._snapshot.being_written else self._slots != newest
        text = "the slot does not point to its newest entry"
        self._each("index-slot", wrong, HEADER_SIZE, SLOT_SIZE, text)
        numbers = np.flatnonzero((self._slots > 0) & (self._slots <= self._bounds.keys))
        right = self._hash_slots[self._slots[numbers]] == numbers
        self._reached[self._slots[numbers[right]]] = True
        if self._snapshot.being_written:
            self._reached[newest] = True

    def _check_reached(self) -> None:
        """Check that each entry is in its chain."""
        lost = ~self._reached
        lost[0] = False
        at = slot_position(self._bounds.slots)
        text = "no slot and no newer entry points to the entry"
        self._each("index-chain", lost, at, ENTRY_SIZE, text)

    def _check_header(self, log: CommitLog) -> None:
        header, keys = self._bounds.header, self._bounds.keys
        first, last = self._read(1, 1)[0], self._read(keys, 1)[0]
        used = int(np.count_nonzero(self._slots))
        checks = [
            (16, "beginPhyOffset", header.begin_phy_offset, int(first["phyOffset"])),
            (24, "endPhyOffset", header.end_phy_offset, int(last["phyOffset"])),
            (36, "indexCount", header.index_count, keys + 1),
        ]
        if not self._snapshot.being_written:
            checks.append((32, "hashSlotCount", header.hash_slot_count, used))
        for offset, name, stated, found in checks:
            if stated != found:
                self._say_header(offset, name, stated, found)
        for offset, name, stated, place in (
            (0, "beginTimestamp", header.begin_timestamp, int(first["phyOffset"])),
            (8, "endTimestamp", header.end_timestamp, int(last["phyOffset"])),
        ):
            if self._snapshot.begin <= place < self._snapshot.end:
                record = record_head(log, place)
                if record is not None and int(record.store_timestamp[0]) != stated:
                    self._say_header(offset, name, stated, int(record.store_timestamp[0]))

    def _say_header(self, offset: int, name: str, stated: int, found: int) -> None:
        _say(
            self._findings, self._bounds, self._snapshot, "index-header", offset,
            f"the header's {name} is {stated}, but the content's {found}",
        )  # fmt: skip


def check_index_entries(
    store: Store, snapshot: Snapshot, unit: IndexEntriesUnit, findings: Findings
) -> None:
    """Check entries of an index file that no record matched."""
    checker = _UnmatchedEntries(store, snapshot, unit.number, findings)
    for first in range(unit.start, unit.end, _UNMATCHED_AT_ONCE):
        checker.check(first, min(first + _UNMATCHED_AT_ONCE, unit.end))


class _UnmatchedEntries:
    """Checks entries of one file."""

    def __init__(self, store: Store, snapshot: Snapshot, number: int, findings: Findings) -> None:
        self._log = store.log
        self._files = store.directory.files
        self._snapshot = snapshot
        self._bounds = snapshot.index[number]
        self._findings = findings
        self._flaws = Flaws(snapshot.flaws)
        self._topics = TopicNumbers()

    def check(self, start: int, end: int) -> None:
        """Check the entries with the numbers `start` to `end - 1`."""
        at = entry_position(self._bounds.slots, start)
        wanted = (end - start) * ENTRY_SIZE
        data = self._files.read(self._bounds.path, at, wanted).ljust(wanted, b"\0")
        entries = decode_entries(data)
        offsets = entries["phyOffset"].astype(np.int64)
        expired = (offsets >= 0) & (offsets < self._snapshot.begin)
        unread = self._flaws.hold(offsets)
        newer = (offsets >= self._snapshot.end) & ~unread
        outside = offsets < 0
        counts = self._findings.counts
        counts["expiredIndexEntries"] += int(np.count_nonzero(expired))
        counts["indexEntriesOfDamagedRecords"] += int(np.count_nonzero(unread))
        if self._snapshot.killed and newer.any():
            self._note_stale(start + int(np.argmax(newer)), int(np.count_nonzero(newer)))
        elif not self._snapshot.being_written:
            outside |= newer
        self._say(outside, start, offsets, "the entry points outside the log")
        rows = np.flatnonzero(~(expired | unread | outside | newer))
        right = self._names_its_key(entries, rows[np.argsort(offsets[rows], kind="stable")])
        counts["indexEntries"] += int(np.count_nonzero(right))
        wrong = np.zeros(len(entries), np.bool_)
        wrong[rows] = True
        self._say(
            wrong & ~right, start, offsets, "the entry does not point to a record with its key"
        )

    def _say(self, bad: npt.NDArray[np.bool_], start: int, offsets: I8, text: str) -> None:
        bounds = self._bounds
        self._findings.each(
            "error" if bounds.vouched else "note", "index-entry", bad,
            lambda row: (bounds.path, entry_position(bounds.slots, start + row)),
            lambda row: f"{text} ({int(offsets[row])})",
        )  # fmt: skip

    def _note_stale(self, first: int, count: int) -> None:
        bounds = self._bounds
        self._findings.note(
            "stale-entries", (bounds.path, entry_position(bounds.slots, first)),
            f"{count} entries point past the end that the log has after the crash",
        )  # fmt: skip

    def _names_its_key(self, entries: IndexEntries, rows: I8) -> npt.NDArray[np.bool_]:
        """Return which entries point to a record that has a key of their hash.

        Args:
            entries: n entries.
            rows: the entries to check, ascending by physical offset.
        """
        right = np.zeros(len(entries), np.bool_)
        offsets = entries["phyOffset"].astype(np.int64)
        rows = rows[self._log.covers(offsets[rows], np.full(len(rows), 4, np.int32))]
        sizes = np.zeros(len(entries), np.int32)
        if len(rows):
            head, at = self._log.read_entries(offsets[rows], np.full(len(rows), 4, np.int32), None)
            sizes[rows] = values_at(head, np.dtype(">i4"), at)
        rows = rows[(sizes[rows] >= MIN_RECORD_SIZE) & (sizes[rows] <= MAX_RECORD_SIZE)]
        rows = rows[self._log.covers(offsets[rows], sizes[rows])]
        for part in read_batches(rows, sizes):
            buffer, at = self._log.read_entries(offsets[part], sizes[part], None)
            records = decode_records(buffer, at, sizes[part])
            sound = (records.status == 0) & (records.physical_offset == offsets[part])
            found = np.flatnonzero(sound)
            if not len(found):
                continue
            batch = LogBatch(self._log, records.take(found), offsets[part[found]], self._topics)
            key_rows, key_hashes = index_keys(batch)
            known = key_rows << _HASH_BITS | key_hashes
            hashes = entries["keyHash"][part[found]].astype(np.int64)
            asked = np.arange(len(found)) << _HASH_BITS | hashes
            right[part[found]] = np.isin(asked, known) & (hashes >= 0)
        return right
