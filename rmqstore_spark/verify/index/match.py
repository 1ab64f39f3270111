"""Compares the keys of the log's records with the index entries, in one pass over both.

A broker adds keys as it dispatches records, so the files together hold them in the order of the
log. In this order, each key is compared with a single entry.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.layout.index.format import (
    ENTRY_SIZE,
    SLOT_SIZE,
    IndexEntries,
    chain,
    decode_entries,
    entry_position,
    slot_position,
)
from rmqstore_spark.layout.record.block import index_hashes
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.index.files import IndexSequence
from rmqstore_spark.verify.log_batch import LogBatch
from rmqstore_spark.verify.snapshot import Snapshot

_SLACK: Final = 1 << 12
_MAX_DIFF: Final = 2**31 - 1
_HASH_BITS: Final = 31
_REMEMBERED: Final = 1 << 12

Mask = npt.NDArray[np.bool_]


class IndexMatcher:
    """Matches the keys of each record with index entries, for the batches of the log in order.

    An entry that names a record with its key is covered. All others are checked afterwards. A key
    without an entry is looked up through its chain, as a reader does, before it counts as missing.

    Args:
        snapshot: the snapshot of the store.
        files: the file system of the index files.
        start: physical offset of the first batch.
        findings: collects the problems.
    """

    def __init__(self, snapshot: Snapshot, files: Files, start: int, findings: Findings) -> None:
        self._index = snapshot.index
        self._files = files
        self._findings = findings
        self._entries = IndexSequence(files, snapshot.index)
        self._next = self._entries.first_at(start)
        self._begin_times = np.array(
            [bounds.header.begin_timestamp for bounds in snapshot.index], np.int64
        )
        spans = sorted(
            (max(first, b.header.begin_phy_offset), min(last, b.header.end_phy_offset), n)
            for n, b in enumerate(snapshot.index)
            if b.keys
            for first, last in [self._entries.ends_of(n)]
        )
        self._spans = np.array(spans or [(1 << 62, 0, 0)], np.int64)
        self._chains: dict[tuple[int, int], frozenset[int]] = {}

    def check(self, batch: LogBatch) -> None:
        """Match the keys of a batch's records."""
        if not len(self._entries) or not len(batch):
            return
        rows, hashes = index_keys(batch)
        if not len(rows):
            return
        offsets = batch.offsets[rows]
        entries = self._entries.read(self._next, len(offsets))
        if (
            len(entries) == len(offsets)
            and (entries["phyOffset"] == offsets).all()
            and (entries["keyHash"] == hashes).all()
        ):
            numbers = np.arange(self._next, self._next + len(offsets))
            self._next += len(offsets)
            self._matched(numbers, entries, batch.records.store_timestamp[rows])
        else:
            self._align(batch, rows, hashes, offsets)

    def _align(self, batch: LogBatch, rows: I8, hashes: I4, offsets: I8) -> None:
        """Match keys and entries that are not in the same order."""
        base, last = int(batch.offsets[0]), int(batch.offsets[-1])
        self._skip_to(base)
        entries = self._entries.read(self._next, len(offsets) + _SLACK)
        places = entries["phyOffset"].astype(np.int64)
        inside = np.flatnonzero((places >= base) & (places <= last))
        wanted = (offsets - base) << _HASH_BITS | hashes
        given = (places[inside] - base) << _HASH_BITS | entries["keyHash"][inside]
        order = np.argsort(wanted, kind="stable")
        at = np.minimum(np.searchsorted(wanted[order], given), len(order) - 1)
        right = wanted[order[at]] == given
        chosen = inside[right]
        if len(chosen):
            times = batch.records.store_timestamp[rows[order[at[right]]]]
            self._matched(self._next + chosen, entries[chosen], times)
            self._next += int(chosen[-1]) + 1
        self._look_up(hashes, offsets, ~np.isin(wanted, given))

    def _skip_to(self, offset: int) -> None:
        """Skip the entries of records before an offset."""
        while self._next < len(self._entries):
            places = self._entries.read(self._next, _SLACK)["phyOffset"]
            later = np.flatnonzero(places >= offset)
            self._next += int(later[0]) if len(later) else len(places)
            if len(later):
                return

    def _matched(self, numbers: I8, entries: IndexEntries, times: I8) -> None:
        """Cover entries that name a record with their key, and check their timeDiff."""
        owner, own = self._entries.locate(numbers)
        self._findings.index.add_numbers(owner, own)
        self._findings.counts["indexEntries"] += len(numbers)
        begin = self._begin_times[owner]
        diff = np.clip((times - begin) // 1000, 0, _MAX_DIFF)
        diff[begin <= 0] = 0
        # A broker measures the first entry of a file from the end of the previous file.
        wrong = (entries["timeDiff"] != diff) & (own > 1)
        self._findings.each(
            "error", "index-time", wrong,
            lambda m: self._entry_place(int(owner[m]), int(own[m]), 12),
            lambda m: f"timeDiff is {int(entries['timeDiff'][m])}, its record's {int(diff[m])}",
        )  # fmt: skip

    def _entry_place(self, file: int, number: int, byte: int) -> Place:
        bounds = self._index[file]
        return bounds.path, entry_position(bounds.slots, number) + byte

    def _look_up(self, hashes: I4, offsets: I8, lost: Mask) -> None:
        """Look up keys that no entry matched, if a file claims to hold them."""
        rows = np.flatnonzero(lost)
        at = np.searchsorted(self._spans[:, 0], offsets[rows], side="left") - 1
        # At its first and last record a file may hold only some of the keys.
        claimed = (at >= 0) & (offsets[rows] < self._spans[np.maximum(at, 0), 1])
        files = self._spans[np.maximum(at, 0), 2]
        self._findings.counts["unindexedKeys"] += int(np.count_nonzero(~claimed))
        for row, number in zip(rows[claimed].tolist(), files[claimed].tolist(), strict=True):
            key_hash, offset = int(hashes[row]), int(offsets[row])
            if offset in self._chain(number, key_hash):
                continue
            bounds = self._index[number]
            self._findings.say(
                "error" if bounds.vouched else "note",
                "missing-key",
                (bounds.path, slot_position(key_hash % bounds.slots)),
                f"no entry for a key (hash {key_hash}) of the record at {offset} of the log",
            )

    def _chain(self, number: int, key_hash: int) -> frozenset[int]:
        """Return the physical offsets that an index file holds for a hash."""
        known = self._chains.get((number, key_hash))
        if known is not None:
            return known
        bounds = self._index[number]

        def read_entries(first: int, count: int) -> IndexEntries:
            at = entry_position(bounds.slots, first)
            return decode_entries(self._files.read(bounds.path, at, count * ENTRY_SIZE))

        raw = self._files.read(bounds.path, slot_position(key_hash % bounds.slots), SLOT_SIZE)
        newest = int.from_bytes(raw, "big", signed=True)
        try:
            found = chain(key_hash, bounds.slots, newest, bounds.keys + 1, read_entries)
        except CorruptStoreError:
            found = np.empty(0, np.int64)  # the check of the file reports it
        if len(self._chains) >= _REMEMBERED:
            self._chains.clear()
        self._chains[number, key_hash] = frozenset(found.tolist())
        return self._chains[number, key_hash]


def index_keys(batch: LogBatch) -> tuple[I8, I4]:
    """Return the keys under which a broker indexes the records of a batch, in its order.

    Returns:
        For each key, its record's row, ascending, and its hash.
    """
    records = batch.records
    hashes, rows = index_hashes(records.buffer, records.positions, records.store_size)
    return rows.astype(np.int64), hashes
