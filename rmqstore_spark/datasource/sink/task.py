"""What one task of a write does: rows in, records staged or stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.wire.messages import StageInfo

__all__ = ["IDLE_SECONDS", "Place", "TaskDone", "run_task"]

IDLE_SECONDS: Final = 20.0
"""A stream is ended when there was nothing to send for so long; a store process ends those that
are idle for longer (streamIdleTimeout, a minute)."""

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Place:
    """Which task of what it is.

    Args:
        partition: of the rows; all attempts at a task have the same.
        query_id: of the stream, the same over all its restarts; None where there is no stream.
        batch_id: of the micro-batch.
    """

    partition: int
    query_id: str | None
    batch_id: int

    @classmethod
    def here(cls) -> Place:
        """Ask Spark, in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this is no task of Spark")
        batch = context.getLocalProperty(_BATCH_ID)
        return cls(context.partitionId(), context.getLocalProperty(_QUERY_ID), int(batch or 0))


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """What a task tells the driver.

    Args:
        place: which task it was.
        stages: what it has staged, in order, by the store's place among the endpoints.
        rows: that it has read.
    """

    place: Place
    stages: Mapping[int, tuple[StageInfo, ...]]
    rows: int


def run_task(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    place: Place,
    first_turn: int,
    idle_seconds: float = IDLE_SECONDS,
) -> TaskDone:
    """Write the rows of one partition.

    Args:
        options: of the write.
        columns: where they stand in the batches.
        batches: what Spark hands over.
        place: which task this is.
        first_turn: see `Router`.
        idle_seconds: how long a stream to a store may have nothing to send.

    Raises:
        RowError: a row cannot become a message.
        TopicNotFoundError: a topic is not there, or cannot be written.
        RefusedError: a store refuses records.
        ServiceError: a store process cannot be reached.
    """
    from rmqstore_spark.datasource.sink.encode import Encoder
    from rmqstore_spark.datasource.sink.sending import Putting, Sending, Staging
    from rmqstore_spark.datasource.sink.stores import TargetStores

    with ExitStack() as closing:
        connection = options.connection
        clients = [
            closing.enter_context(connection.client(endpoint)) for endpoint in connection.endpoints
        ]
        stores = TargetStores(clients)
        encoder = Encoder(options, columns, stores.opened, stores.queues, first_turn)
        kind: type[Sending[Any]] = Staging if options.exactly_once else Putting
        sending = closing.enter_context(kind(options, clients, idle_seconds))
        rows = 0
        for batch in batches:
            rows += len(batch)
            for block in encoder.encode(batch):
                sending.send(block)
        return TaskDone(place, sending.finish(), rows)
