"""Checks an index file by itself: header, slots and chains (docs/format.md, "An IndexFile")."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.base import Files
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
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import IndexBounds, IndexFileUnit, Snapshot

__all__ = ["check_index_file"]

_BLOCK: Final = 1 << 19


def check_index_file(
    store: Store, snapshot: Snapshot, unit: IndexFileUnit, findings: Findings
) -> None:
    """Check that each entry of an index file can be reached by the chain of its slot."""
    bounds = snapshot.index[unit.number]
    findings.counts["indexFiles"] += 1
    if not bounds.slots:
        _check_unreadable(bounds, snapshot, findings)
        return
    _IndexFile(store.directory.files, bounds, snapshot, findings).check(store.log)


def _check_unreadable(bounds: IndexBounds, snapshot: Snapshot, findings: Findings) -> None:
    header = bounds.header
    if header.index_count <= 1:
        return  # it has no key yet
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
        for first in range(1, self._bounds.keys + 1, _BLOCK):
            count = min(_BLOCK, self._bounds.keys + 1 - first)
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
