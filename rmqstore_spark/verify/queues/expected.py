"""Computes the queue entries that a broker writes for records.

A record has an entry in its own queue and in each light queue that it names, unless it is prepared
or rolled back (docs/format.md, "A ConsumeQueue entry", "Light queues"; upstream
`CommitLogDispatcherBuildConsumeQueue`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.constants import (
    LMQ_PREFIX,
    MULTI_DISPATCH_QUEUE_SPLITTER,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_NOT_TYPE,
)
from rmqstore_spark.layout.index.hashing import hash_spans
from rmqstore_spark.layout.spans import I4, I8, string_array
from rmqstore_spark.verify.log_batch import LogBatch

_INT: Final = re.compile(r"[+-]?[0-9]{1,10}")
_SLOT: Final = r"^[0-9]{1,18}$"


@dataclass(frozen=True)
class Expected:
    """m entries that the records of a batch should have.

    Attributes:
        rows: m numbers of records in the batch.
        queue: m numbers of queues, -1 for a queue that the store does not have.
        slots: m queue offsets.
        light: the entries from this position on belong to light queues.
    """

    rows: I8
    queue: I4
    slots: I8
    light: int

    def take(self, chosen: I8) -> Expected:
        """Return the given entries. Their numbers must ascend."""
        light = int(np.searchsorted(chosen, self.light))
        return Expected(self.rows[chosen], self.queue[chosen], self.slots[chosen], light)


class EntryMaker:
    """Computes the entries of records in the queues of a store.

    Args:
        numbers: the number of each queue, by topic and queueId.
    """

    def __init__(self, numbers: dict[tuple[str, int], int]) -> None:
        self._of_log = np.zeros(0, np.int64)
        self._topics = {topic: n for n, topic in enumerate({topic for topic, _ in numbers})}
        known = sorted(
            (self._topics[topic] << 32 | queue_id, n) for (topic, queue_id), n in numbers.items()
        )
        self._keys = np.array([key for key, _ in known] or [-1], np.int64)
        self._numbers = np.array([number for _, number in known] or [-1], np.int32)

    def expected(self, batch: LogBatch) -> Expected:
        """Return the entries that the records of a batch should have."""
        live = batch.transaction == TRANSACTION_NOT_TYPE
        live |= batch.transaction == TRANSACTION_COMMIT_TYPE
        rows = np.flatnonzero(live)
        queue = self._find(self._known(batch), batch.topic_codes, batch.records.queue_id)
        slots = batch.records.queue_offset
        light = self._light(batch, live)
        if light is None:
            return Expected(rows, queue[rows], slots[rows], len(rows))
        return Expected(
            np.concatenate([rows, light.rows]),
            np.concatenate([queue[rows], light.queue]),
            np.concatenate([slots[rows], light.slots]),
            len(rows),
        )

    def _known(self, batch: LogBatch) -> I8:
        """Return the number of each topic of the log among those with queues; -1 for none."""
        codes = batch.topic_codes  # computing these fills `batch.topics`
        if len(codes) and len(self._of_log) < len(batch.topics):
            self._of_log = self._numbered(batch.topics)
        return self._of_log

    def _numbered(self, topics: Sequence[str | None]) -> I8:
        return np.array([self._topics.get(topic or "", -1) for topic in topics], np.int64)

    def _find(self, known: I8, codes: I4, queue_ids: I4) -> I4:
        """Return the numbers of queues by topic and queueId; -1 if a queue does not exist."""
        keys = np.where(queue_ids >= 0, known[codes] << 32 | queue_ids, -2)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._numbers[at], np.int32(-1))

    def _light(self, batch: LogBatch, live: Any) -> Expected | None:
        """Return the entries in light queues; None if no record names any."""
        names = batch.named(PROPERTY_INNER_MULTI_DISPATCH)
        rows = np.flatnonzero((names.lengths > 0) & live)
        if not len(rows):
            return None
        splitter = MULTI_DISPATCH_QUEUE_SPLITTER
        queues = pc.split_pattern(string_array(names.take(rows)), splitter)
        offsets = batch.named(PROPERTY_INNER_MULTI_QUEUE_OFFSET).take(rows)
        slots = pc.split_pattern(string_array(offsets), splitter)
        paired = pc.equal(pc.list_value_length(queues), pc.list_value_length(slots))
        kept = np.flatnonzero(pc.fill_null(paired, False).to_numpy(zero_copy_only=False))
        queues, slots = queues.take(pa.array(kept)), slots.take(pa.array(kept))
        owner = rows[kept][pc.list_parent_indices(queues).to_numpy()]
        texts = slots.flatten()
        numbers = pc.if_else(pc.match_substring_regex(texts, _SLOT), texts, "-1").cast(pa.int64())
        queue_ids = batch.records.queue_id[owner]
        light = pc.starts_with(queues.flatten(), LMQ_PREFIX).to_numpy(zero_copy_only=False)
        named = queues.flatten().dictionary_encode()
        queue = self._find(
            self._numbered(named.dictionary.to_pylist()),
            named.indices.to_numpy(),
            np.where(light, 0, queue_ids).astype(np.int32),
        )
        return Expected(owner, queue, numbers.to_numpy(), 0)


def tags_codes(batch: LogBatch, delays: tuple[int, ...]) -> tuple[I8, Any]:
    """Compute the tagsCode of each record's entries.

    Args:
        batch: n records.
        delays: milliseconds of each delay level.

    Returns:
        n codes: the hash of the TAGS, or the due time of a delayed message.
        A mask of the n records whose DELAY is not a number: a broker's start ends its log there.
    """
    codes = hash_spans(batch.named(PROPERTY_TAGS))[0].view(np.int32).astype(np.int64)
    bad = np.zeros(len(batch), np.bool_)
    rows = np.flatnonzero(batch.named(PROPERTY_DELAY).lengths >= 0)
    if not len(rows):
        return codes, bad
    schedule = [n for n, topic in enumerate(batch.topics) if topic == SCHEDULE_TOPIC]
    rows = rows[np.isin(batch.topic_codes[rows], schedule)]
    if not len(rows):
        return codes, bad
    texts = string_array(batch.named(PROPERTY_DELAY).take(rows)).dictionary_encode()
    levels = [int(text) if _INT.fullmatch(text) else None for text in texts.dictionary.to_pylist()]
    which = texts.indices.to_numpy()
    bad[rows] = np.array([level is None for level in levels])[which]
    waits = np.array([_wait(level or 0, delays) for level in levels], np.int64)[which]
    timed = waits >= 0
    codes[rows[timed]] = batch.records.store_timestamp[rows[timed]] + waits[timed]
    return codes, bad


def _wait(level: int, delays: tuple[int, ...]) -> int:
    """Return the milliseconds of a delay level; -1 if the level is not a delay."""
    return delays[min(level, len(delays)) - 1] if level > 0 and delays else -1
