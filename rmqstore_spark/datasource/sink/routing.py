"""Choose a queue for each row; the same rows always get the same queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.datasource.sink.stores import Queues
from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.index.hashing import java_hash_code
from rmqstore_spark.layout.spans import I4, I8

__all__ = ["Routed", "Router"]


@dataclass(frozen=True)
class Routed:
    """The queues of n rows.

    Attributes:
        store: n, the store's number among the endpoints.
        queue_id: n.
    """

    store: I4
    queue_id: I4


class Router:
    """Chooses queues for the rows of one task, batch after batch.

    Rows without a key take turns, topic by topic. The first turn depends only on the micro-batch
    and the partition, so that small batches do not all go to the first queue, and a replay chooses
    the same queues as the first run.

    Args:
        selector: see the option queueSelector.
        queues: returns the queues of a topic.
        first_turn: at least 0.
    """

    def __init__(
        self,
        selector: Literal["hash", "roundrobin", "column"],
        queues: Callable[[str], Queues],
        first_turn: int,
    ) -> None:
        self._selector = selector
        self._queues = queues
        self._first_turn = first_turn
        self._turns: dict[str, int] = {}

    def route(
        self,
        topics: pa.StringArray,
        keys: pa.StringArray | None,
        queue_ids: pa.Int64Array | None,
    ) -> Routed:
        """Choose a queue for each of n rows.

        Args:
            topics: n, none null.
            keys: n, the texts by which to choose; null or empty for no key. None: no row has one.
            queue_ids: n, for the selector `column`.

        Raises:
            RowError: a queue id is null, or its topic has no such queue.
        """
        coded = topics.dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        code = coded.indices.to_numpy()
        wanted = self._numbers(code, names, keys)
        store, queue = np.empty(len(code), np.int32), np.empty(len(code), np.int32)
        for number, name in enumerate(names):
            rows = np.arange(len(code)) if len(names) == 1 else np.flatnonzero(code == number)
            queues = self._queues(name)
            if queue_ids is None:
                slot = wanted[rows] % len(queues)
            else:
                slot = _of_column(queues, rows, queue_ids, wanted[rows], name)
            store[rows], queue[rows] = queues.store[slot], queues.queue_id[slot]
        return Routed(store, queue)

    def _numbers(
        self, code: npt.NDArray[np.int32], names: list[str], keys: pa.StringArray | None
    ) -> I8:
        """Return a number of at least 0 for each row, from its key or else from its turn."""
        turns = np.empty(len(code), np.int64)
        for number, name in enumerate(names):
            rows = code == number
            count = int(np.count_nonzero(rows))
            first = self._turns.get(name, self._first_turn)
            turns[rows] = np.arange(first, first + count)
            self._turns[name] = first + count
        if self._selector == "roundrobin" or keys is None:
            return turns
        # SelectMessageQueueByHash: Math.abs(hashCode % n), which equals abs(hashCode) % n.
        hashed = np.abs(java_hash_code(keys).astype(np.int64))
        keyless = pc.fill_null(pc.equal(pc.binary_length(keys), 0), fill_value=True)
        return np.where(keyless.to_numpy(zero_copy_only=False), turns, hashed)


def _of_column(queues: Queues, rows: I8, queue_ids: pa.Int64Array, numbers: I8, topic: str) -> I8:
    """Return the queues that a column names; the row's number chooses among stores that have it."""
    missing = queue_ids.is_null().to_numpy(zero_copy_only=False)[rows]
    if missing.any():
        raise RowError(
            int(rows[missing][0]), "has null in column queueId, which queueSelector=column needs"
        )
    wanted = queue_ids.fill_null(0).to_numpy()[rows]
    most = int(queues.queue_id.max()) + 1
    wrong = (wanted < 0) | (wanted >= most)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise RowError(
            int(rows[row]),
            f"has queueId {wanted[row]}, but topic {topic!r} has queues 0 to {most - 1}. Add "
            "queues with `rmqstore create-topic`, or set another queueSelector",
        )
    by_id = np.argsort(queues.queue_id, kind="stable")
    first = np.searchsorted(queues.queue_id[by_id], np.arange(most + 1))
    holders = first[wanted + 1] - first[wanted]
    slots: I8 = by_id[first[wanted] + numbers % holders]
    return slots
