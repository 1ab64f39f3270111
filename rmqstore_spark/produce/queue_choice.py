"""Choose a queue for each message; the same messages always get the same queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.index.hashing import java_hash_code
from rmqstore_spark.layout.spans import I4, I8

ADD_QUEUES: Final = "Add queues with `rmqstore create-topic`"


@dataclass(frozen=True)
class Queues:
    """The writable queues of one topic, of all stores, in a fixed order.

    Attributes:
        store: n, the store's number among the endpoints.
        queue_id: n.
    """

    store: I4
    queue_id: I4

    @classmethod
    def of(cls, counts: Sequence[int]) -> Queues:
        """Number queues: those of the first store, then those of the second, and so on.

        Args:
            counts: number of queues of each store.
        """
        stores = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ids = [np.arange(count, dtype=np.int32) for count in counts]
        return cls(stores, np.concatenate([*ids, np.empty(0, np.int32)]))

    def __len__(self) -> int:
        return len(self.queue_id)


@dataclass(frozen=True)
class Routed:
    """The queues of n messages.

    Attributes:
        store: n, the store's number among the endpoints.
        queue_id: n.
        is_chosen: n, whether a queue id or a key chose the queue, rather than a turn.
    """

    store: I4
    queue_id: I4
    is_chosen: npt.NDArray[np.bool_]


class Router:
    """Chooses queues for messages, batch after batch.

    A queue id decides, else the hash of a key. Other messages take turns, topic by topic. Where
    contents are given, a turn chooses only among the queues of one store: a commit is known by what
    it gives each store, and a replay can have its rows in other partitions and in another order.

    Args:
        queues: returns the queues of a topic.
        by_key: whether keys count.
        first_turn: at least 0. The sink derives it from the micro-batch and the partition alone, so
            that small batches do not all go to the first queue, and a replay chooses the same
            queues as the first run.
        all_take_turns: whether messages with a queue id or a key use up a turn too. The sink wants
            that: a row's turn is its place among the rows of its topic. A producer's client does
            not, and gives each queue as many of the other messages.
        remedy: what to do about a queue that a topic does not have; ends its error.
    """

    def __init__(
        self,
        queues: Callable[[str], Queues],
        *,
        by_key: bool = True,
        first_turn: int = 0,
        all_take_turns: bool = False,
        remedy: str = ADD_QUEUES,
    ) -> None:
        self.by_key = by_key
        self._queues = queues
        self._first_turn = first_turn
        self._all_take_turns = all_take_turns
        self._remedy = remedy
        self._turns: dict[str, int] = {}

    def route(
        self,
        topics: pa.StringArray,
        keys: pa.StringArray | None,
        queue_ids: pa.Int64Array | None,
        contents: I8 | None = None,
    ) -> Routed:
        """Choose a queue for each of n messages.

        Args:
            topics: n, none null.
            keys: n, the texts by which to choose; null or empty for no key. None: no message has
                one.
            queue_ids: n; null for no queue id. None: no message has one. Where several stores have
                such a queue, key, content or turn chooses among them.
            contents: n, at least 0, the same for the same message: chooses the store of a message
                without a key. None: its turn does.

        Raises:
            RowError: a topic has no queue with the id.
        """
        coded = topics.dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        code = coded.indices.to_numpy()
        chosen = self._keyed(len(code), keys)
        wanted = self._numbers(code, names, keys, chosen, queue_ids)
        store, queue = np.empty(len(code), np.int32), np.empty(len(code), np.int32)
        for number, name in enumerate(names):
            rows = np.arange(len(code)) if len(names) == 1 else np.flatnonzero(code == number)
            queues = self._queues(name)
            slot = wanted[rows] % len(queues)
            if contents is not None:
                free = ~chosen[rows]
                slot[free] = _turn_in_store(queues, contents[rows[free]], wanted[rows[free]])
            if queue_ids is not None:
                placed = _present(queue_ids)[rows]
                numbers = wanted if contents is None else np.where(chosen, wanted, contents)
                slot[placed] = self._slots(name, rows[placed], queue_ids, numbers[rows[placed]])
            store[rows], queue[rows] = queues.store[slot], queues.queue_id[slot]
        return Routed(store, queue, chosen if queue_ids is None else chosen | _present(queue_ids))

    def _keyed(self, count: int, keys: pa.StringArray | None) -> npt.NDArray[np.bool_]:
        """Return which messages have a key that chooses their queue."""
        if keys is None or not self.by_key:
            return np.zeros(count, np.bool_)
        has_key = pc.fill_null(pc.greater(pc.binary_length(keys), 0), fill_value=False)
        keyed: npt.NDArray[np.bool_] = has_key.to_numpy(zero_copy_only=False)
        return keyed

    def _numbers(
        self,
        code: npt.NDArray[np.int32],
        names: list[str],
        keys: pa.StringArray | None,
        keyed: npt.NDArray[np.bool_],
        queue_ids: pa.Int64Array | None,
    ) -> I8:
        """Return a number of at least 0 for each message, from its key or else from its turn."""
        turning = np.ones(len(code), np.bool_) if self._all_take_turns else ~keyed
        if queue_ids is not None and not self._all_take_turns:
            turning &= ~_present(queue_ids)
        turns = np.zeros(len(code), np.int64)
        for number, name in enumerate(names):
            rows = (code == number) & turning
            count = int(np.count_nonzero(rows))
            first = self._turns.get(name, self._first_turn)
            turns[rows] = np.arange(first, first + count)
            self._turns[name] = first + count
        if not keyed.any():
            return turns
        # SelectMessageQueueByHash: Math.abs(hashCode % n), which equals abs(hashCode) % n.
        return np.where(keyed, np.abs(java_hash_code(keys).astype(np.int64)), turns)

    def _slots(self, topic: str, rows: I8, queue_ids: pa.Int64Array, numbers: I8) -> I8:
        """Return the queues with the rows' ids; a number chooses among stores that have it."""
        queues = self._queues(topic)
        wanted = queue_ids.fill_null(0).to_numpy()[rows]
        most = int(queues.queue_id.max()) + 1
        wrong = (wanted < 0) | (wanted >= most)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise RowError(
                int(rows[row]),
                f"has queueId {wanted[row]}, but topic {topic!r} has queues 0 to {most - 1}. "
                f"{self._remedy}",
            )
        by_id = np.argsort(queues.queue_id, kind="stable")
        first = np.searchsorted(queues.queue_id[by_id], np.arange(most + 1))
        holders = first[wanted + 1] - first[wanted]
        slots: I8 = by_id[first[wanted] + numbers % holders]
        return slots


def _turn_in_store(queues: Queues, contents: I8, turns: I8) -> I8:
    """Return queues whose stores the contents choose, each as often as it has queues."""
    store = queues.store[contents % len(queues)]
    first = np.searchsorted(queues.store, store)
    held = np.searchsorted(queues.store, store, "right") - first
    slots: I8 = first + turns % held
    return slots


def _present(column: pa.Array) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return present
