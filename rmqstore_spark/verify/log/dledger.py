"""Checks a DLedger log: the headers of its entries, and its index.

See docs/format.md, "DLedger".
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.dledger import (
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    INDEX_UNIT_DTYPE,
    INDEX_UNIT_SIZE,
    decode_entry_headers,
    decode_index_units,
)
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.log_batch import LogBatch

_PORTION: Final = 1 << 16
_FIELDS: Final = {"size": 4, "index": 8, "term": 16, "position": 24}  # with their offsets


class DLedgerChecker:
    """Checks the headers in front of records, and the index unit of each.

    Args:
        store: a store with a DLedger log.
        findings: collects the problems.
    """

    def __init__(self, store: Store, findings: Findings) -> None:
        self._findings = findings
        self._units = index_segments(store)
        self._last: tuple[int, int] | None = None

    def check(self, batch: LogBatch) -> None:
        """Check the entries of a batch of records."""
        records = batch.records
        headers, valid = decode_entry_headers(records.buffer, records.positions - ENTRY_HEADER_SIZE)
        index, term = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
        position = headers["position"].astype(np.int64)
        valid &= headers["bodyLength"] == records.store_size
        self._say(batch, ~valid, 4, "the header's lengths do not match its record")
        self._say(
            batch, position != batch.offsets - ENTRY_HEADER_SIZE, 24,
            "the header states a wrong position",
        )  # fmt: skip
        last = self._last or (int(index[0]) - 1, int(term[0]))
        before = np.concatenate([[last[0]], index[:-1]])
        self._say(
            batch,
            index != before + 1,
            8,
            "the header's index does not follow that of the entry before it",
        )
        terms = np.concatenate([[last[1]], term[:-1]])
        self._say(
            batch, term < terms, 16, "the header's term is older than that of the entry before it"
        )
        self._last = int(index[-1]), int(term[-1])
        self._check_units(batch, headers)

    def _check_units(self, batch: LogBatch, headers: npt.NDArray[np.void]) -> None:
        index = headers["index"].astype(np.int64)
        inside = (index >= 0) & (index < 1 << 58)
        at = np.where(inside, index, 0) * INDEX_UNIT_SIZE
        there = inside & self._units.covers(at, np.full(len(at), INDEX_UNIT_SIZE))
        self._say(batch, ~there, 8, "the index has no unit for the entry")
        rows = np.flatnonzero(there)
        rows = rows[np.argsort(at[rows], kind="stable")]
        if not len(rows):
            return
        buffer, starts = self._units.read_entries(at[rows], np.full(len(rows), INDEX_UNIT_SIZE))
        units = values_at(buffer, INDEX_UNIT_DTYPE, starts)
        same = np.ones(len(batch), np.bool_)
        for name, byte in _FIELDS.items():
            unlike = np.zeros(len(batch), np.bool_)
            unlike[rows] = units[name] != headers[name][rows]
            self._say(batch, unlike, byte, f"the header's {name} does not match its index unit")
            same &= ~unlike
        self._findings.counts["dledgerEntries"] += int(np.count_nonzero(there & same))

    def _say(self, batch: LogBatch, bad: npt.NDArray[np.bool_], byte: int, text: str) -> None:
        def place(row: int) -> Place:
            file, at = batch.place(row)
            return file, None if at is None else at - ENTRY_HEADER_SIZE + byte

        self._findings.each("error", "dledger-entry", bad, place, text)


def index_segments(store: Store) -> Segments:
    """List the files of the index of a store's DLedger log."""
    folder = store.directory.dledger_log()
    return Segments.load(store.directory.files, [folder.index] if folder else [])


def check_units(store: Store, end: int, findings: Findings) -> None:
    """Check that each unit of a DLedger index has its number, and follows the previous one.

    Args:
        end: log offset up to which entries are committed.
    """
    units = index_segments(store)
    data = store.log.dledger
    if data is None:
        return
    number = -(-units.min_offset // INDEX_UNIT_SIZE)
    last = units.end_offset // INDEX_UNIT_SIZE
    reached = -1
    while number < last and reached < end:
        count = min(_PORTION, last - number)
        try:
            raw = units.read_range(number * INDEX_UNIT_SIZE, count * INDEX_UNIT_SIZE)
        except (SegmentExpiredError, CorruptStoreError) as error:
            findings.error("dledger-index", (error.file, error.offset), error.cause)
            return
        found = decode_index_units(raw)
        if reached < 0:  # a member that came later has no units of the entries before its first
            written = np.flatnonzero(found["magic"])
            number += int(written[0]) if len(written) else count
            found = found[written[0] :] if len(written) else found[:0]
            count = len(found)
            if not count:
                continue
        position = found["position"].astype(np.int64)
        stop = position + found["size"]
        before = np.concatenate([[reached], stop[:-1]])
        follows = (position == before) | ((before == -1) & (number == 0) & (position == 0))
        # The end of a segment is left empty; where segments have expired, nobody knows how much.
        begins = np.isin(position, data.starts) | (position < data.min_offset)
        follows |= begins & (position >= before)
        follows |= (before == -1) & (position <= data.min_offset)  # older entries have expired
        wrong = (found["magic"] != ENTRY_MAGIC) | (found["size"] <= ENTRY_HEADER_SIZE) | ~follows
        wrong |= found["index"] != np.arange(number, number + count)
        wrong &= np.maximum.accumulate(before) < end  # uncommitted entries may be overwritten
        findings.each(
            "error", "dledger-index", wrong,
            partial(_unit_place, units, number),
            "the unit does not match its number, or does not follow the unit before it",
        )  # fmt: skip
        reached = max(reached, int(stop.max()))
        number += count
        if wrong.any():
            return  # a damaged unit makes its neighbors look wrong too


def _unit_place(units: Segments, first: int, row: int) -> Place:
    at = (first + row) * INDEX_UNIT_SIZE
    segment = units.locate(at)
    return segment.path, at - segment.start
