"""The keys under which a broker indexes records, in its order (upstream: IndexService.buildIndex).

A record is indexed under its UNIQ_KEY, then under each of its KEYS; a rolled-back one not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout.constants import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_ROLLBACK_TYPE,
)
from rmqstore_spark.layout.hashing import index_key_hash, java_hash_code, java_hash_code_str
from rmqstore_spark.layout.properties import split_keys
from rmqstore_spark.layout.spans import I8, string_array
from rmqstore_spark.reader.verify.batch import LogBatch

__all__ = ["IndexKeys", "KeyHasher"]

I4 = npt.NDArray[np.int32]

_BASE: Final = 31


@dataclass(frozen=True)
class IndexKeys:
    """m keys of the records of a batch.

    Attributes:
        rows: m, ascending, which record each is of.
        hashes: m, as an index file holds them.
    """

    rows: I8
    hashes: I4


class KeyHasher:
    """Hashes keys; remembers what it worked out for the topics."""

    def __init__(self) -> None:
        self._powers = np.cumprod(np.full(1 << 16, _BASE, np.uint32), dtype=np.uint32)
        self._powers = np.concatenate([np.ones(1, np.uint32), self._powers[:-1]])
        self._topics: dict[str, int] = {}

    def keys(self, batch: LogBatch) -> IndexKeys:
        """The keys of a batch's records."""
        indexed = batch.transaction != TRANSACTION_ROLLBACK_TYPE
        unique = batch.named(PROPERTY_UNIQ_KEY)
        has_unique = (unique.lengths >= 0) & indexed
        lists = split_keys(batch.named(PROPERTY_KEYS))
        bounds = lists.offsets.to_numpy().astype(np.int64)
        count = np.diff(bounds)
        pieces: Any = lists.values
        if not indexed.all():
            kept = np.repeat(indexed, count)
            pieces, count = pieces.filter(pa.array(kept)), np.where(indexed, count, 0)
        ends = np.cumsum(count + has_unique)
        first = ends - count - has_unique
        hashes = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        unique_rows = np.flatnonzero(has_unique)
        hashes[first[unique_rows]] = self._hash(
            string_array(unique.take(unique_rows)), unique_rows, batch
        )
        key_rows = np.repeat(np.arange(len(batch)), count)
        starts = np.cumsum(count) - count
        at = np.arange(len(key_rows)) + np.repeat(first + has_unique - starts, count)
        hashes[at] = self._hash(pieces, key_rows, batch)
        return IndexKeys(np.repeat(np.arange(len(batch)), count + has_unique), hashes)

    def _hash(self, keys: pa.StringArray, rows: I8, batch: LogBatch) -> I4:
        """Hashes of keys of the batch's records.

        The hash of `topic#key` is that of `topic#`, times 31 for each UTF-16 unit of the key, plus
        that of the key.
        """
        if not len(keys):
            return np.empty(0, np.int32)
        codes = batch.topic_codes[rows]
        _, offsets_buffer, data_buffer = keys.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, len(keys) + 1, 4 * keys.offset)
        data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
        if len(data) and data.max() >= 0x80:  # bytes and UTF-16 units differ
            return index_key_hash(pa.array(batch.topics, pa.string()).take(pa.array(codes)), keys)
        prefixes = np.array([self._prefix(topic) for topic in batch.topics], np.uint32)
        weights = self._powers[np.diff(offsets)]
        sums = prefixes[codes] * weights + java_hash_code(keys).view(np.uint32)
        hashes = np.abs(sums.view(np.int32))
        hashes[hashes < 0] = 0
        return hashes

    def _prefix(self, topic: str) -> int:
        if topic not in self._topics:
            self._topics[topic] = java_hash_code_str(topic + "#") & 0xFFFFFFFF
        return self._topics[topic]
