"""Cut messages into requests to brokers: batches of one queue each, and single messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.client.brokers.routes import PublishRoutes
from rmqstore_spark.client.brokers.sending import Outgoing, OutgoingMessage
from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX
from rmqstore_spark.layout.spans import I8, array_texts
from rmqstore_spark.produce.encoder import ReadyMessages, batch_entries
from rmqstore_spark.produce.queue_choice import Queues

_MAX_BODY: Final = 4 << 20
"""Most bytes of a body, as in RocketMQ's producers (maxMessageSize)."""
_BATCH_BYTES: Final = 2 << 20
"""Most bytes of a batch as a broker stores it. Brokers limit them to their maxMessageSize."""
_RECORD_BYTES: Final = 300
"""Most bytes that a record has more than its message in a batch: topic, hosts, cluster."""


class BrokerRequests:
    """Brokers, and requests that send messages to them; see `encode.Targets`.

    A batch shares its queue and its bornTimestamp, and brokers neither delay it nor take it for the
    topic of a group's retries. Other messages are sent one by one.

    Args:
        routes: the brokers of the topics.
    """

    max_body = _MAX_BODY
    body_limit = f"a broker of RocketMQ accepts at most {_MAX_BODY:,}. Split or shorten it"
    add_queues = "Add queues with mqadmin updateTopic"
    by_content = False  # brokers know of no commits, and a turn is fair

    def __init__(self, routes: PublishRoutes) -> None:
        self._routes = routes

    def queues(self, topic: str) -> Queues:
        """Return the queues of a topic, of all its brokers."""
        return Queues.of([place.queues for place in self._routes.of(topic)])

    def encode(self, messages: ReadyMessages) -> Iterator[Outgoing]:
        """Yield requests: the first ones of all queues, then the second ones, and so on."""
        if not len(messages.store):
            return
        rows = _Rows(messages)
        parts = sorted(rows.parts(), key=lambda part: part[0])
        for _, first, last in parts:
            places = self._routes.of(rows.topic(first))
            place = places[rows.store[first]]
            can_move = not rows.is_chosen[first:last].any()
            yield Outgoing(rows.message(first, last), place.name, int(rows.queue[first]), can_move)


class _Rows:
    """Messages ordered by their queue.

    Attributes:
        store, queue: n, the number of the broker, and of its queue.
        is_chosen: n, as in `ReadyMessages`.
    """

    def __init__(self, messages: ReadyMessages) -> None:
        columns = messages.columns
        topics = columns["topic"].dictionary_encode()
        self._names: list[str] = topics.dictionary.to_pylist()
        code, queue = topics.indices.to_numpy(), columns["queueId"].to_numpy()
        order = np.lexsort((queue, messages.store, code))
        self.store, self.queue = messages.store[order], queue[order]
        self._code = code[order]
        self.is_chosen = messages.is_chosen[order]
        born = columns.get("bornTimestamp")
        self._born: I8 = (
            np.full(len(order), messages.origin.time) if born is None else born.to_numpy()[order]
        )
        self._flag = _numbers(columns, "flag", order)
        self._times = _numbers(columns, "reconsumeTimes", order)
        self._body, self._properties = (
            columns[name].take(pa.array(order)) for name in ("body", "properties")
        )
        is_retry = np.array([name.startswith(RETRY_GROUP_TOPIC_PREFIX) for name in self._names])
        self._is_alone = messages.is_delayed[order] | (self._times > 0) | is_retry[self._code]
        entries = batch_entries(self._flag, self._body, self._properties)
        self._ends, self._data = array_texts(entries)

    def topic(self, row: int) -> str:
        """Return the topic of a message."""
        return self._names[self._code[row]]

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield which part of its queue's messages a request has, and its first and last row."""
        size = self._ends[1:].astype(np.int64) + _RECORD_BYTES * np.arange(1, len(self._code) + 1)
        is_new = _changes(self._code, self.store, self.queue)
        breaks = is_new | _changes(self._born) | self._is_alone[1:] | self._is_alone[:-1]
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(self._code)]
        of_queue = np.concatenate([[0], np.cumsum(is_new)])
        number = at = 0
        for first, end in pairwise(starts):
            if of_queue[first] != at:
                number, at = 0, of_queue[first]
            while first < end:
                before = int(size[first - 1]) if first else 0
                last = int(np.searchsorted(size[:end], before + _BATCH_BYTES, "right"))
                last = max(last, first + 1)
                yield number, first, last
                number += 1
                first = last

    def message(self, first: int, last: int) -> OutgoingMessage:
        """Return the messages from a row up to another one."""
        topic, born = self.topic(first), int(self._born[first])
        if last - first > 1:
            body = self._data[self._ends[first] : self._ends[last]].tobytes()
            return OutgoingMessage(topic, body, born, is_batch=True)
        properties: bytes = self._properties[first].as_py()
        return OutgoingMessage(
            topic,
            self._body[first].as_py(),
            born,
            properties.decode("utf-8", "replace"),
            int(self._flag[first]),
            int(self._times[first]),
        )


def _changes(*columns: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.bool_]:
    """Return, for each row but the first, whether a column differs from that of the row before."""
    changed = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        changed |= column[1:] != column[:-1]
    return changed


def _numbers(columns: Mapping[str, pa.Array], name: str, order: I8) -> npt.NDArray[np.int32]:
    if name not in columns:
        return np.zeros(len(order), np.int32)
    found: npt.NDArray[np.int32] = columns[name].to_numpy()[order]
    return found
