"""Which queues the records of a log belong to, for a store that has no ConsumeQueues to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.constants import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_NOT_TYPE,
)
from rmqstore_spark.reader.options import ReadOptions

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = ["LogQueue", "queues_in_log"]


class LogQueue(NamedTuple):
    """What the log holds of one queue.

    Attributes:
        min_offset: least queue offset of its messages.
        max_offset: one past the greatest.
        messages: how many there are.
    """

    min_offset: int
    max_offset: int
    messages: int


def queues_in_log(
    store: Store, options: ReadOptions = ReadOptions()
) -> Mapping[tuple[str, int], LogQueue]:
    """The queues that a broker would make of a store's log, by topic and queueId.

    Reads the whole log. Prepared and rolled-back messages count in none, and light queues are not
    told: each message counts once, under its own topic.

    Raises:
        CorruptRecordError: damage in the log, and the mode is FAILFAST.
    """
    wanted = ("topic", "queueId", "queueOffset", "sysFlag")
    found: dict[tuple[str, int], LogQueue] = {}
    for batch in store.scan(options=replace(options, columns=wanted, check_crc=False)):
        kinds = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
        queued = np.isin(kinds, (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE))
        table = pa.Table.from_batches([batch.filter(pa.array(queued))])
        sums = table.group_by(["topic", "queueId"]).aggregate(
            [("queueOffset", "min"), ("queueOffset", "max"), ("queueOffset", "count")]
        )
        for row in sums.to_pylist():
            key = row["topic"], row["queueId"]
            first, last = row["queueOffset_min"], row["queueOffset_max"] + 1
            known = found.get(key, LogQueue(first, last, 0))
            found[key] = LogQueue(
                min(known.min_offset, first),
                max(known.max_offset, last),
                known.messages + row["queueOffset_count"],
            )
    return {key: found[key] for key in sorted(found)}
