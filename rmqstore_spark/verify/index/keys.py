"""Hashes the keys under which a broker indexes records (upstream: IndexService.buildIndex).

A broker indexes a record under its UNIQ_KEY, then under each of its KEYS. It does not index a
rolled-back record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_ROLLBACK_TYPE,
)
from rmqstore_spark.layout.index.hashing import (
    POWERS,
    hash_spans,
    index_key_hash,
    java_hash_code_str,
)
from rmqstore_spark.layout.spans import I4, I8, Spans, string_array
from rmqstore_spark.verify.log_batch import LogBatch


@dataclass(frozen=True)
class IndexKeys:
    """m keys of the records of a batch.

    Attributes:
        rows: m numbers of records, ascending.
        hashes: m hashes, as an index file holds them.
    """

    rows: I8
    hashes: I4


class KeyHasher:
    """Hashes keys. Caches the hashes of the topics."""

    def __init__(self) -> None:
        self._prefixes = np.zeros(0, np.uint32)

    def keys(self, batch: LogBatch) -> IndexKeys:
        """Return the keys of a batch's records, in the order of a broker."""
        unique, listed = batch.named(PROPERTY_UNIQ_KEY), batch.named(PROPERTY_KEYS)
        rolled_back = batch.transaction == TRANSACTION_ROLLBACK_TYPE
        if rolled_back.any():
            unique, listed = _without(unique, rolled_back), _without(listed, rolled_back)
        bounds, pieces = _pieces(listed)
        count = np.diff(bounds)
        has_unique = unique.lengths >= 0
        each = count + has_unique
        first = np.cumsum(each) - each
        hashes = np.empty(int(each.sum()), np.int32)
        rows = np.arange(len(batch))
        unique_rows = np.flatnonzero(has_unique)
        if len(unique_rows) < len(rows):
            unique = unique.take(unique_rows)
        hashes[first[unique_rows]] = self._hash(unique, unique_rows, batch)
        key_rows = np.repeat(rows, count)
        shift = first + has_unique - bounds[:-1]
        hashes[np.arange(len(key_rows)) + shift[key_rows]] = self._hash(pieces, key_rows, batch)
        return IndexKeys(np.repeat(rows, each), hashes)

    def _hash(self, keys: Spans, rows: I8, batch: LogBatch) -> I4:
        """Hash keys of the batch's records.

        The hash of `topic#key` is the hash of `topic#`, times 31 for each UTF-16 unit of the key,
        plus the hash of the key.
        """
        codes = batch.topic_codes[rows]
        if len(self._prefixes) < len(batch.topics):
            prefixes = [java_hash_code_str(topic + "#") & 0xFFFFFFFF for topic in batch.topics]
            self._prefixes = np.array(prefixes, np.uint32)
        own, wide = hash_spans(keys)
        hashes = np.abs((self._prefixes[codes] * POWERS[keys.lengths] + own).view(np.int32))
        if wide.any():  # not ASCII: a byte is not always a UTF-16 unit
            odd = np.flatnonzero(wide)
            topics = pa.array([batch.topics[code] for code in codes[odd].tolist()], pa.string())
            hashes[odd] = index_key_hash(topics, string_array(keys.take(odd)))
        hashes[hashes < 0] = 0
        return hashes


def _without(spans: Spans, rows: np.ndarray) -> Spans:
    """Return the same spans, without a value in some rows."""
    return Spans(spans.buffer, spans.starts, np.where(rows, np.int32(-1), spans.lengths))


def _pieces(keys: Spans) -> tuple[I8, Spans]:
    """Split the keys of each row. Return where the keys of each row begin, and all keys."""
    room = int(((np.maximum(keys.lengths, 0).astype(np.int64) + 1) // 2).sum())
    rows = np.empty(len(keys) + 1, np.int32)
    at, length = np.empty(room, np.int64), np.empty(room, np.int32)
    count = kernel.active.split_spaces(keys.buffer, keys.starts, keys.lengths, rows, at, length)
    return rows.astype(np.int64), Spans(keys.buffer, at[:count], length[:count])
