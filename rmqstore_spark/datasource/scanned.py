"""Filter the rows of a store without queues, whose log has to be read as a whole.

Keeps the rows that queues would hold: a prepared or rolled-back record belongs to no queue.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.layout.constants import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_NOT_TYPE,
)

__all__ = ["chosen_rows", "with_needed"]

_NEEDED: Final = ("topic", "queueId", "sysFlag")


def with_needed(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Add the columns that are needed to filter rows."""
    return columns + tuple(name for name in _NEEDED if name not in columns)


def chosen_rows(
    batch: pa.RecordBatch, queues: QueueOptions, columns: tuple[str, ...]
) -> pa.RecordBatch:
    """Return the rows that a query requests.

    Args:
        batch: n rows with the columns of `with_needed`.
        queues: the topics and queues that it reads.
        columns: the columns to return, which are the first ones of the batch.
    """
    kinds = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
    wanted = np.isin(kinds, (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE))
    wanted &= _in_chosen_queue(batch, queues)
    return batch.filter(pa.array(wanted)).select(range(len(columns)))


def _in_chosen_queue(batch: pa.RecordBatch, queues: QueueOptions) -> npt.NDArray[np.bool_]:
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.to_numpy()
    names = topics.dictionary.to_pylist()
    if queues.assign is None:
        chosen = np.array([queues.wants_topic(name) for name in names], np.bool_)
        return chosen[codes]
    queue_ids = batch.column("queueId").to_numpy()
    found = np.zeros(len(codes), np.bool_)
    for code, name in enumerate(names):
        if name in queues.assign:
            found |= (codes == code) & np.isin(queue_ids, queues.assign[name])
    return found
