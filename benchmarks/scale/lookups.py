"""What it takes to find one message of a store: by its key, by its id, by its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key, query_by_msg_id

__all__ = ["find_seconds"]

_LOOKUPS: Final = 5


class _Message(NamedTuple):
    """A message that is looked up.

    Attributes:
        key, msg_id: one of its KEYS, and its offset message id.
        queue_id, at_ms: its queue, and its storeTimestamp.
    """

    key: str
    msg_id: str
    queue_id: int
    at_ms: int


def find_seconds(store: str, topic: str) -> dict[str, float]:
    """Seconds to open a store, and to find a message of a topic in it; medians."""
    with Store.open(store) as opened:
        wanted = [_message(opened, topic, n / (_LOOKUPS + 1)) for n in range(1, _LOOKUPS + 1)]
    return {
        "open to read": _median(store, wanted, lambda opened, _: opened.log_end()),
        "open to read, find a key": _median(store, wanted, lambda s, m: _by_key(s, topic, m)),
        "open to read, find an id": _median(store, wanted, _by_id),
        "open to read, find a time": _median(store, wanted, lambda s, m: _by_time(s, topic, m)),
    }


def _message(store: Store, topic: str, part: float) -> _Message:
    """Return the message that some part of a queue precedes."""
    queues = store.queues([topic])
    queue = queues[int(part * len(queues))]
    offset = queue.min_offset + int(part * (queue.max_offset - queue.min_offset))
    (batch,) = store.read(topic, queue.queue_id, offset, offset + 1)
    (row,) = batch.select(["keys", "msgId", "storeTimestamp"]).to_pylist()
    at_ms = int(row["storeTimestamp"].timestamp() * 1000)
    return _Message(row["keys"][0], row["msgId"], queue.queue_id, at_ms)


def _median(
    path: str, wanted: Sequence[_Message], find: Callable[[Store, _Message], object]
) -> float:
    times = []
    for message in wanted:
        began = time.perf_counter()
        with Store.open(path) as store:
            find(store, message)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _by_key(store: Store, topic: str, message: _Message) -> None:
    _require(query_by_key(store, topic, message.key).num_rows == 1)


def _by_id(store: Store, message: _Message) -> None:
    _require(query_by_msg_id(store, message.msg_id).num_rows == 1)


def _by_time(store: Store, topic: str, message: _Message) -> None:
    _require(store.queue(topic, message.queue_id).offset_at(message.at_ms) is not None)


def _require(is_found: bool) -> None:
    if not is_found:
        raise SystemExit("a message was not found")
