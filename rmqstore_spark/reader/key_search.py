"""Finds the records that have a key, through the index if it covers them, otherwise in the log.

The result is always complete: stretches that no index file covers are read record by record. Index
entries only say where to look, so the keys of each record are checked (docs/format.md, "An
IndexFile"; upstream: IndexService).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.errors import CorruptRecordError, RmqStoreError, SegmentExpiredError
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import TRANSACTION_MASK, TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.index.hashing import index_key_hash
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.spans import I4, I8, U1, string_array
from rmqstore_spark.reader.key_index import IndexedStretch, indexed_stretches, tell_once
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.log.walk import Flaw, walk_log
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.rows.decoder import has_key, is_in
from rmqstore_spark.reader.rows.scan import report_flaw

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

MAX_TIME: Final = 2**63 - 1

_CHUNK: Final = 4096  # records whose sizes are looked up at once
_SIZE_SIZE: Final = 4  # a record begins with its size


@dataclass(frozen=True)
class KeyWanted:
    """The conditions of a search for records.

    Attributes:
        keys: each is a UNIQ_KEY, or one of KEYS.
        topics: the topics of the records; None for any. The index needs topics: without them the
            log is read.
        begin_ms: least storeTimestamp, milliseconds.
        end_ms: greatest storeTimestamp.
        uniq_only: check UNIQ_KEY alone.
    """

    keys: frozenset[str]
    topics: frozenset[str] | None
    begin_ms: int = 0
    end_ms: int = MAX_TIME
    uniq_only: bool = False

    def matches(self, records: Records) -> npt.NDArray[np.bool_]:
        """Return which of n records match. Rolled-back ones never do: no index holds them."""
        keep = (records.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK_TYPE
        keep &= records.store_timestamp >= self.begin_ms
        keep &= records.store_timestamp <= self.end_ms
        if self.topics is not None:
            names = string_array(records.topic).dictionary_encode()
            keep &= is_in(names.dictionary, self.topics)[names.indices.to_numpy()]
        rows = np.flatnonzero(keep)
        keep[rows] = has_key(records.take(rows), self.keys, uniq_only=self.uniq_only)
        return keep

    def hashes(self) -> npt.NDArray[np.int32]:
        """Return the hashes in an index: one for each key of each topic."""
        topics, keys = sorted(self.topics or ()), sorted(self.keys)
        owners = pa.array([topic for topic in topics for _ in keys], pa.string())
        return index_key_hash(owners, keys * len(topics))


@dataclass(frozen=True)
class IndexPiece:
    """A stretch of the log, and the index file that covers it.

    Attributes:
        start: where a unit of the log begins.
        end: one past the last byte of the stretch.
        index: the index file that covers the stretch; None if the log must be read.
    """

    start: int
    end: int
    index: IndexedStretch | None


def known_topics(store: Store) -> frozenset[str]:
    """Return the topics that have queues or settings in a store."""
    return _texts(frozenset(topic.name for topic in store.known_topics()))


def _texts(values: frozenset[str]) -> frozenset[str]:
    """Return the values that are valid text: no record holds half a surrogate pair."""
    return frozenset(v for v in values if v.encode("utf-8", "ignore").decode() == v)


def index_pieces(
    store: Store,
    start: int | None = None,
    end: int | None = None,
    topics: Collection[str] | None = None,
) -> list[IndexPiece]:
    """Cut a stretch of the log into pieces with and without an index, ascending, without gaps.

    Args:
        start: where a unit begins; by default the log's first.
        end: one past the last byte; by default the log's end.
        topics: what is searched for belongs to these topics, whose last record may end it earlier.
    """
    stretches = indexed_stretches(store)
    if end is None:
        end = store.scan_end(topics)
        if stretches and _ends_with(store, stretches[-1]):
            end = min(end, stretches[-1].end)
    at = store.log.min_offset if start is None else max(start, store.log.min_offset)
    found = []
    for stretch in stretches:
        first, last = max(at, stretch.start), min(end, stretch.end)
        if first >= last:
            continue
        if at < first:
            found.append(IndexPiece(at, first, None))
        found.append(IndexPiece(first, last, stretch))
        at = last
    if at < end:
        found.append(IndexPiece(at, end, None))
    return found


def _ends_with(store: Store, stretch: IndexedStretch) -> bool:
    """Return whether a cleanly closed log holds nothing after a stretch.

    The rest of the last file is up to a gigabyte of zeros. They need not be read if the checkpoint
    says that no record is newer than the last one of the stretch.
    """
    checkpoint = store.checkpoint
    if not store.is_closed_cleanly or checkpoint is None or stretch.last is None:
        return False
    newest = record_head(store.log, stretch.last)
    flushed = checkpoint.physic_msg_timestamp
    if newest is None or not 0 < flushed <= int(newest.store_timestamp[0]):
        return False
    return stretch.end >= store.log.file_end or not any(store.log.read(stretch.end, 8))


class KeySearch:
    """A search for records with a key.

    Args:
        store: the store to search.
        wanted: the conditions.
        options: the mode and the batch sizes.
        between: called between two batches of a walk over the log.

    Attributes:
        topics: the topics of the records; None: of any topic.
    """

    def __init__(
        self,
        store: Store,
        wanted: KeyWanted,
        options: ReadOptions,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self._files = store.directory.files
        self._log = store.log
        self._published_end = store.published_end
        self._is_open_end = store.is_open_end
        self._wanted = KeyWanted(
            _texts(wanted.keys),
            None if wanted.topics is None else _texts(wanted.topics),
            wanted.begin_ms,
            wanted.end_ms,
            wanted.uniq_only,
        )
        self.topics = self._wanted.topics
        self._options = options
        self._between = between
        self._buffer: U1 | None = None

    def run(self, stretch: list[IndexPiece]) -> Iterator[Records]:
        """Find the records that match, the newest first.

        Args:
            stretch: the pieces to search, as `index_pieces` returns them.

        Yields:
            Groups of records, ascending within a group. Each group lies before the previous one.
            Their bytes are valid until the next group is requested.

        Raises:
            CorruptRecordError: the log is damaged, and the mode is FAILFAST.
            SegmentExpiredError: a file has expired.
        """
        if not self._wanted.keys:
            return
        for piece in reversed(stretch):
            bound = piece.end
            if piece.index is not None and self._wanted.topics is not None:
                try:
                    for records in self._read(self._indexed(piece, piece.index)):
                        bound = self._log.unit_start(int(records.physical_offset[0]))
                        yield self._matching(records)
                    continue
                except SegmentExpiredError:
                    raise
                except (RmqStoreError, FileNotFoundError) as error:
                    path = piece.index.path
                    tell_once(
                        self._files,
                        path,
                        f"Skipped {path}, reading the log from {piece.start} to {bound} instead: "
                        f"{error}",
                    )
            for records in self._read(self._walked(piece.start, bound)):
                yield self._matching(records)

    def read(self, offsets: I8, sizes: I4) -> Iterator[Records]:
        """Read records that `run` has found.

        Args:
            offsets: their physical offsets, ascending.
            sizes: their sizes.

        Yields:
            The records, ascending, a batch at a time. Their bytes are valid until the next batch is
            requested.

        Raises:
            CorruptRecordError: the log now holds another record there.
            SegmentExpiredError: a file has expired.
        """
        for first in range(0, len(offsets), self._options.batch_rows):
            rows = slice(first, first + self._options.batch_rows)
            found, length = offsets[rows], sizes[rows]
            for part in reversed(list(_from_the_end(length, self._options.batch_bytes))):
                yield self._records(found[part], length[part])

    def _matching(self, records: Records) -> Records:
        return records.take(np.flatnonzero(self._wanted.matches(records)))

    def _indexed(self, piece: IndexPiece, index: IndexedStretch) -> I8:
        """Return where an index says that matching records can be, ascending."""
        found = index.offsets(self._files, self._wanted.hashes())
        found = np.union1d(found, np.array(index.edges, np.int64))
        return found[(found >= piece.start) & (found < piece.end)]

    def _walked(self, start: int, end: int) -> I8:
        """Walk over the log, and return where matching records are, ascending."""
        found = [np.empty(0, np.int64)]
        # Decoding checks the bodies, as it does for records that the index names.
        for item in walk_log(self._log, start, end, check_crc=False, is_damage=self._is_damage):
            self._between()
            if isinstance(item, Flaw):
                if item.empty and self._is_open_end(item.offset):
                    break
                report_flaw(self._log, item, end, self._options)
            else:
                found.append(item.offsets[self._wanted.matches(item.records)])
        return np.concatenate(found)

    def _is_damage(self, flaw: Flaw) -> bool:
        return flaw.offset < self._published_end()

    def _read(self, offsets: I8) -> Iterator[Records]:
        """Read the records at some physical offsets, the last ones first."""
        for last in range(len(offsets), 0, -_CHUNK):
            chunk = offsets[max(0, last - _CHUNK) : last]
            sizes = self._sizes(chunk)
            for part in _from_the_end(sizes, self._options.batch_bytes):
                yield self._records(chunk[part], sizes[part])

    def _sizes(self, offsets: I8) -> I4:
        """Read the sizes of the records at some physical offsets."""
        log = self._log
        lengths = np.full(len(offsets), _SIZE_SIZE, np.int32)
        self._require(log.covers(offsets, lengths), offsets)
        buffer, at = log.read_entries(offsets, lengths, self._buffer)
        sizes = values_at(buffer, np.dtype(">i4"), at).astype(np.int32)
        sane = (sizes >= MIN_RECORD_SIZE) & (sizes <= MAX_RECORD_SIZE)
        self._require(sane & log.covers(offsets, sizes), offsets)
        self._buffer = buffer
        return sizes

    def _records(self, offsets: I8, sizes: I4) -> Records:
        self._buffer, at = self._log.read_entries(offsets, sizes, self._buffer)
        records = decode_records(self._buffer, at, sizes)
        whole = (records.status == 0) & (records.store_size == sizes)
        self._require(whole & (records.physical_offset == offsets), offsets)
        return records

    def _require(self, there: npt.NDArray[np.bool_], offsets: I8) -> None:
        if not there.all():
            file, at = self._log.place(int(offsets[np.argmin(there)]))
            raise CorruptRecordError(
                "an index entry leads to a place without a record", file=file, offset=at
            )


def _from_the_end(sizes: I4, limit: int) -> Iterator[slice]:
    """Cut n records into runs of about `limit` bytes, the last ones first."""
    end = len(sizes)
    while end:
        total = np.cumsum(sizes[:end][::-1], dtype=np.int64)
        count = max(1, int(np.searchsorted(total, limit, side="right")))
        yield slice(end - count, end)
        end -= count
