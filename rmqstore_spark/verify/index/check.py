"""Checks the index entries that no record matched during the walk over the log."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.index.format import (
    ENTRY_SIZE,
    IndexEntries,
    decode_entries,
    entry_position,
)
from rmqstore_spark.layout.record.format import MAX_RECORD_SIZE, MIN_RECORD_SIZE, decode_records
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.flaws import Flaws
from rmqstore_spark.verify.index.keys import KeyHasher
from rmqstore_spark.verify.log_batch import LogBatch
from rmqstore_spark.verify.portions import portions
from rmqstore_spark.verify.snapshot import IndexEntriesUnit, Snapshot
from rmqstore_spark.verify.topic_numbers import TopicNumbers

__all__ = ["check_index_entries"]

_BLOCK: Final = 1 << 16
_HASH_BITS: Final = 31


def check_index_entries(
    store: Store, snapshot: Snapshot, unit: IndexEntriesUnit, findings: Findings
) -> None:
    """Check entries of an index file that no record matched."""
    checker = _Checker(store, snapshot, unit.number, findings)
    for first in range(unit.start, unit.end, _BLOCK):
        checker.check(first, min(first + _BLOCK, unit.end))


class _Checker:
    """Checks entries of one file."""

    def __init__(self, store: Store, snapshot: Snapshot, number: int, findings: Findings) -> None:
        self._log = store.log
        self._files = store.directory.files
        self._snapshot = snapshot
        self._bounds = snapshot.index[number]
        self._findings = findings
        self._flaws = Flaws(snapshot.flaws)
        self._hasher = KeyHasher()
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
            raw = np.lib.stride_tricks.sliding_window_view(head, 4)[at]
            sizes[rows] = np.ascontiguousarray(raw).view(">i4")[:, 0]
        rows = rows[(sizes[rows] >= MIN_RECORD_SIZE) & (sizes[rows] <= MAX_RECORD_SIZE)]
        rows = rows[self._log.covers(offsets[rows], sizes[rows])]
        for part in portions(rows, sizes):
            buffer, at = self._log.read_entries(offsets[part], sizes[part], None)
            records = decode_records(buffer, at, sizes[part])
            sound = (records.status == 0) & (records.physical_offset == offsets[part])
            found = np.flatnonzero(sound)
            if not len(found):
                continue
            batch = LogBatch(self._log, records.take(found), offsets[part[found]], self._topics)
            keys = self._hasher.keys(batch)
            known = keys.rows << _HASH_BITS | keys.hashes
            hashes = entries["keyHash"][part[found]].astype(np.int64)
            asked = np.arange(len(found)) << _HASH_BITS | hashes
            right[part[found]] = np.isin(asked, known) & (hashes >= 0)
        return right
