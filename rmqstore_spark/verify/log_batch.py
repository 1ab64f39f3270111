"""Holds a batch of records of the log, and computes once what several checks need of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.systems.spans import slices_of_size
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_TAGS,
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, Spans, binary_array
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.verify.findings import Place

_NAMES: Final = (
    PROPERTY_TAGS,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)
_TAIL: Final = 8
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_MOST_ROWS: Final = 4096
_MOST_BYTES: Final = 16 << 20

U8 = npt.NDArray[np.uint64]


class LogBatch:
    """n records whose structure is sound.

    Args:
        log: the log that holds them.
        records: as `decode_records` returns them.
        offsets: n physical offsets that they were read from.
        table: numbers their topics.
    """

    def __init__(self, log: CommitLog, records: Records, offsets: I8, table: TopicNumbers) -> None:
        self._log = log
        self._table = table
        self.records = records
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.records)

    def place(self, row: int) -> Place:
        """Return the file and offset of a record."""
        return self._log.place(int(self.offsets[row]))

    @property
    def topics(self) -> list[str]:
        """All topics seen so far."""
        return self._table.names

    @cached_property
    def topic_codes(self) -> I4:
        """The number of each record's topic in `topics`."""
        return self._table.codes(self.records.topic)

    @cached_property
    def transaction(self) -> npt.NDArray[np.int32]:
        """The transaction bits of each record's sysFlag."""
        return self.records.sys_flag & TRANSACTION_MASK

    @cached_property
    def _found(self) -> dict[str, Spans]:
        return find_properties(self.records.properties, _NAMES)

    def named(self, name: str) -> Spans:
        """Return the values of a property, one of those that the checks use."""
        return self._found[name]


class TopicNumbers:
    """Gives each topic a number. A known topic is found by a hash of its length and last bytes.

    Attributes:
        names: the names of the topics, by number.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}
        self._signs = np.zeros(1, np.uint64)
        self._sign_numbers = np.zeros(1, np.int32)
        self._pool = Spans(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.full(1, -1, np.int32))

    def codes(self, topics: Spans) -> I4:
        """Return the number of each of n topics."""
        if not len(topics):
            return np.zeros(0, np.int32)
        signs = _signs(topics)
        at = np.searchsorted(self._signs, signs)
        at[at == len(self._signs)] = 0
        codes = self._sign_numbers[at]
        known = (self._signs[at] == signs) & topics.equal(self._pool.take(codes.astype(np.int64)))
        if not known.all():
            rows = np.flatnonzero(~known)
            codes[rows] = self._learn(topics.take(rows), signs[rows])
        return codes

    def _learn(self, topics: Spans, signs: U8) -> I4:
        """Number topics that the sign did not find: new ones, and those that share a sign."""
        encoded = binary_array(topics).dictionary_encode()
        which = encoded.indices.to_numpy()
        numbers, before = [], len(self.names)
        for raw in encoded.dictionary.to_pylist():
            if raw not in self._numbers:
                self._numbers[raw] = len(self.names)
                self.names.append(raw.decode("utf-8", "replace"))
            numbers.append(self._numbers[raw])
        codes = np.array(numbers, np.int32)[which]
        if len(self.names) > before:
            self._rebuild(signs, codes, before)
        return codes

    def _rebuild(self, signs: U8, codes: I4, before: int) -> None:
        pool = list(self._numbers)
        lengths = np.array([len(raw) for raw in pool], np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        self._pool = Spans(np.frombuffer(b"".join(pool), np.uint8), starts, lengths)
        if not before:  # drop the placeholder that kept the tables from being empty
            self._signs, self._sign_numbers = signs[:0], codes[:0]
        # If topics share a sign, the first one keeps it.
        self._signs, first = np.unique(np.concatenate([self._signs, signs]), return_index=True)
        self._sign_numbers = np.concatenate([self._sign_numbers, codes])[first]


def _signs(topics: Spans) -> U8:
    """Return a sign for each topic: a number made of its length and its last eight bytes."""
    lengths = topics.lengths.astype(np.int64)
    ends = topics.starts + lengths
    last = values_at(topics.buffer, np.dtype(">u8"), ends - _TAIL).astype(np.uint64)
    unused = np.clip(8 * (_TAIL - lengths), 0, 63).astype(np.uint64)
    kept = last & (np.uint64(0xFFFFFFFFFFFFFFFF) >> unused)
    return kept ^ ((lengths.astype(np.uint64) + np.uint64(1)) * _SPREAD)


def read_batches(rows: I8, sizes: npt.NDArray[np.int32]) -> Iterator[I8]:
    """Cut rows into batches of at most 4096 records and about 16 MiB, which are read at once.

    Args:
        rows: numbers of records.
        sizes: sizes of all records, bytes.
    """
    for part in slices_of_size(sizes[rows], rows=_MOST_ROWS, size=_MOST_BYTES):
        yield rows[part]
