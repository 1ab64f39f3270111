"""Encode Spark's batches as blocks of records for each store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.datasource.options.sink_table import MessageOptions
from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.constants import topic_fault
from rmqstore_spark.layout.record.encode import EncodedRecords
from rmqstore_spark.layout.spans import I8, U1
from rmqstore_spark.produce.encoder import MessageEncoder, ReadyMessages
from rmqstore_spark.produce.queue_choice import ADD_QUEUES, Queues, Router
from rmqstore_spark.produce.uniq_key import RowKeys

if TYPE_CHECKING:
    from rmqstore_spark.wire.reading import OpenReply

__all__ = ["BlockToSend", "RowEncoder", "StoreBlocks", "Targets"]

Sent = TypeVar("Sent", covariant=True)

_AT_ONCE: Final = 16 << 20
"""Bytes of bodies and their metadata that are encoded at once. Encoding takes dozens of calls, and
each costs the same for few rows as for many."""

_BLOCK_BYTES: Final = 4 << 20
"""Maximum bytes of a block, unless it is a single record. Small blocks let the store process check
one while the next is being sent."""

_PER_ROW: Final = 256


@dataclass(frozen=True)
class BlockToSend:
    """Records for one store.

    Attributes:
        store: the store's number among the endpoints.
        data: uint8, records, one after the other.
        rows: number of records.
    """

    store: int
    data: U1
    rows: int


class Targets(Protocol[Sent]):
    """Where messages go, and how they are sent there.

    Attributes:
        max_body: most bytes of a body.
        body_limit: what the error says of a body with more.
        add_queues: how to add queues to a topic, as a sentence without its end.
        by_content: whether the content of a row without a key chooses its store.
    """

    max_body: int
    body_limit: str
    add_queues: str
    by_content: bool

    def queues(self, topic: str) -> Queues:
        """Return the queues of a topic.

        Raises:
            TopicNotFoundError: the topic does not exist, or cannot be written.
        """
        ...

    def encode(self, messages: ReadyMessages) -> Iterator[Sent]:
        """Yield what is sent."""
        ...


class RowEncoder(Generic[Sent]):
    """Encodes the rows of one task. What it yields must be sent in this order.

    Args:
        options: how rows become messages.
        columns: the positions of the columns in Spark's batches.
        targets: where the rows go.
        first_turn: see `Router`.
        clock: returns milliseconds since 1970.
        row_keys: makes UNIQ_KEY; by default ids that no other process makes.
    """

    def __init__(
        self,
        options: MessageOptions,
        columns: SinkColumns,
        targets: Targets[Sent],
        first_turn: int,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        row_keys: RowKeys | None = None,
    ) -> None:
        self._topic = options.topic
        self._columns = columns
        self._targets = targets
        router = Router(
            targets.queues,
            by_key=options.queue_selector != "roundrobin",
            first_turn=first_turn,
            all_take_turns=True,
            remedy=f"{targets.add_queues}, or set another queueSelector",
        )
        self._encoder = MessageEncoder(
            router,
            keep_ids=options.preserve,
            clock=clock,
            row_keys=row_keys,
            by_content=targets.by_content,
        )
        self._checked_topics: set[str] = set()
        self._row = 0

    def encode(self, batch: pa.RecordBatch) -> Iterator[Sent]:
        """Encode one of Spark's batches.

        Raises:
            RowError: a row cannot become a message; the error names the row and the reason.
            TopicNotFoundError: a topic does not exist, or cannot be written.
        """
        for part in _parts(batch, self._columns.places["body"]):
            columns = self._columns.read(part)
            if self._topic is not None:
                columns["topic"] = pa.repeat(self._topic, len(part))
            try:
                yield from self._targets.encode(self._prepare(columns))
            except RowError as error:
                raise self._placed(error, columns) from None
            self._row += len(part)

    def _placed(self, error: RowError, columns: dict[str, pa.Array]) -> RowError:
        """Add the row's number in the task, and its topic, to an error."""
        topic = columns["topic"][error.row].as_py()
        of_topic = f" (topic {topic!r})" if topic is not None else ""
        return RowError(self._row + error.row, f"of this task{of_topic} {error.cause}")

    def _prepare(self, columns: dict[str, pa.Array]) -> ReadyMessages:
        self._check_present(columns)
        self._check_topics(columns["topic"])
        self._check_bodies(columns["body"])
        self._check_queue_ids(columns.get("queueId"))
        return self._encoder.prepare(columns)

    def _check_present(self, columns: dict[str, pa.Array]) -> None:
        for name, remedy in (
            ("topic", "set a topic, set option topic"),
            ("body", "use an empty value for an empty body"),
        ):
            column = columns[name]
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise RowError(row, f"has null in column {name}: {remedy}, or filter out such rows")

    def _check_topics(self, topics: pa.StringArray) -> None:
        for name in topics.unique().to_pylist():
            if name in self._checked_topics:
                continue
            fault = topic_fault(name)
            if fault is not None:
                row = int(pc.index(topics, name).as_py())
                raise RowError(row, f"cannot be stored: {fault.rstrip('.')}")
            self._checked_topics.add(name)

    def _check_bodies(self, bodies: pa.BinaryArray) -> None:
        most = self._targets.max_body
        sizes = pc.binary_length(bodies).to_numpy()
        if len(sizes) and sizes.max() > most:
            row = int(sizes.argmax())
            raise RowError(
                row,
                f"has a body of {sizes[row]:,} bytes, but {self._targets.body_limit}",
            )

    def _check_queue_ids(self, queue_ids: pa.Int64Array | None) -> None:
        if queue_ids is not None and queue_ids.null_count:
            row = int(np.flatnonzero(queue_ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise RowError(row, "has null in column queueId, which queueSelector=column needs")


class StoreBlocks:
    """Stores, and blocks of records for them.

    Args:
        opened: the stores' replies to `open`.
        queues: returns the queues of a topic.
    """

    add_queues = ADD_QUEUES

    def __init__(self, opened: Sequence[OpenReply], queues: Callable[[str], Queues]) -> None:
        self._opened = opened
        self.queues = queues
        self.by_content = len(opened) > 1
        self.max_body = min(reply.max_message_size for reply in opened)
        self.body_limit = (
            f"the store accepts at most {self.max_body:,}. Split or shorten it, or increase the "
            "store's maxMessageSize"
        )

    def encode(self, messages: ReadyMessages) -> Iterator[BlockToSend]:
        """Yield blocks; see `Targets`."""
        for store, reply in enumerate(self._opened):
            rows = None
            if len(self._opened) > 1:
                rows = np.flatnonzero(messages.store == store)
                if not len(rows):
                    continue
            records = messages.encode(store_host_v6=reply.store_host_v6, rows=rows)
            most_bytes = min(reply.max_block_bytes, _BLOCK_BYTES)
            for data, rows_in in _cut(records, most_bytes, reply.max_block_rows):
                yield BlockToSend(store, data, rows_in)


def _parts(batch: pa.RecordBatch, body: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch, each of about `_AT_ONCE` bytes."""
    lengths = pc.fill_null(pc.binary_length(batch.column(body)), 0).to_numpy()
    ends: I8 = np.cumsum(lengths, dtype=np.int64)
    ends += _PER_ROW * np.arange(1, len(ends) + 1)
    first = 0
    while first < len(batch):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _AT_ONCE, "right")), first + 1)
        yield batch.slice(first, last - first)
        first = last


def _cut(records: EncodedRecords, most_bytes: int, most_rows: int) -> Iterator[tuple[U1, int]]:
    """Yield blocks that a store accepts, and the number of records in each."""
    ends = records.starts + records.sizes
    first = 0
    while first < len(ends):
        start = int(records.starts[first])
        last = int(np.searchsorted(ends, start + most_bytes, "right"))
        last = max(min(last, first + most_rows), first + 1)
        yield records.data[start : int(ends[last - 1])], last - first
        first = last
