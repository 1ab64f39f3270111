"""Finds the queues of the records in a log, for a store without ConsumeQueues."""

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


class LogQueue(NamedTuple):
    """The messages of one queue in the log.

    Attributes:
        min_offset: least queue offset of the messages.
        max_offset: one past the greatest queue offset.
        messages: number of messages.
    """

    min_offset: int
    max_offset: int
    messages: int


def queues_in_log(
    store: Store, options: ReadOptions = ReadOptions()
) -> Mapping[tuple[str, int], LogQueue]:
    """Return the queues that a broker would build from a store's log, by topic and queueId.

    Reads the whole log. Prepared and rolled-back messages do not count. Light queues are left out:
    each message counts once, under its own topic.

    Raises:
        CorruptRecordError: the log is damaged, and the mode is FAILFAST.
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
