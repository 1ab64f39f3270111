"""What one task of a write does: rows in, records staged or stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.options import SinkOptions
from rmqstore_spark.errors import OptionError, ServiceError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.client import PutStream, StageStream
    from rmqstore_spark.datasource.sink.stores import TargetStores
    from rmqstore_spark.wire.messages import StageInfo

__all__ = ["Place", "TaskDone", "check_transaction_size", "run_task"]

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
        stages: what it has staged, by the store's place among the endpoints.
        rows: that it has read.
    """

    place: Place
    stages: Mapping[int, StageInfo]
    rows: int


def run_task(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    place: Place,
    first_turn: int,
) -> TaskDone:
    """Write the rows of one partition.

    Args:
        options: of the write.
        columns: where they stand in the batches.
        batches: what Spark hands over.
        place: which task this is.
        first_turn: see `Router`.

    Raises:
        RowError: a row cannot become a message.
        TopicNotFoundError: a topic is not there, or cannot be written.
        RefusedError: a store refuses records.
        ServiceError: a store process cannot be reached.
    """
    from rmqstore_spark.datasource.sink.encode import Encoder
    from rmqstore_spark.datasource.sink.stores import TargetStores

    with ExitStack() as closing:
        connection = options.connection
        clients = [
            closing.enter_context(connection.client(endpoint)) for endpoint in connection.endpoints
        ]
        stores = TargetStores(clients)
        encoder = Encoder(options, columns, stores.opened, stores.queues, first_turn)
        sending = (_Staging if options.exactly_once else _Putting)(options, stores, closing)
        rows = 0
        for batch in batches:
            rows += len(batch)
            for block in encoder.encode(batch):
                sending.send(block.store, block.data, block.rows)
        return TaskDone(place, sending.finish(), rows)


class _Putting:
    """Stores blocks as they come.

    Args:
        options: of the write.
        stores: to write to.
        closing: closes the streams in the end.
    """

    def __init__(self, options: SinkOptions, stores: TargetStores, closing: ExitStack) -> None:
        self._options = options
        self._stores = stores
        self._closing = closing
        self._streams: dict[int, PutStream] = {}

    def send(self, store: int, data: object, _rows: int) -> None:
        """Send a block to one of the stores."""
        stream = self._streams.get(store)
        if stream is None:
            made = self._stores.clients[store].put_stream(
                max_in_flight_bytes=self._options.max_in_flight
            )
            self._closing.callback(made.close)
            stream = self._streams[store] = made
        stream.send(data)

    def finish(self) -> dict[int, StageInfo]:
        """Wait until every store has all."""
        for stream in self._streams.values():
            stream.finish()
        return {}


class _Staging:
    """Stages blocks until Spark commits.

    Args:
        options: of the write.
        stores: to write to.
        closing: closes the streams in the end; a stage that is not finished is discarded by that.
    """

    def __init__(self, options: SinkOptions, stores: TargetStores, closing: ExitStack) -> None:
        self._options = options
        self._stores = stores
        self._closing = closing
        self._streams: dict[int, StageStream] = {}
        self._rows: dict[int, int] = {}
        self._bytes = 0

    def send(self, store: int, data: pa.Buffer, rows: int) -> None:
        """Send a block to one of the stores."""
        self._bytes += memoryview(data).nbytes
        check_transaction_size(self._bytes, self._options, "a task of this write")
        stream = self._streams.get(store)
        if stream is None:
            made = self._stores.clients[store].stage_stream(
                max_in_flight_bytes=self._options.max_in_flight
            )
            self._closing.callback(made.close)
            stream = self._streams[store] = made
        stream.send(data)
        self._rows[store] = self._rows.get(store, 0) + rows

    def finish(self) -> dict[int, StageInfo]:
        """Wait until every store has all, and say what."""
        found = {store: stream.finish() for store, stream in self._streams.items()}
        for store, info in found.items():
            if info.rows != self._rows[store]:
                raise ServiceError(
                    f"The store process at {self._stores.clients[store].endpoint} has staged "
                    f"{info.rows} of {self._rows[store]} records. Look at its log."
                )
        return found


def check_transaction_size(size: int, options: SinkOptions, what: str) -> None:
    """Refuse a commit of too many bytes.

    Raises:
        OptionError: there are more than maxTransactionBytes.
    """
    if size <= options.max_transaction:
        return
    raise OptionError(
        f"{what} holds more than maxTransactionBytes ({options.max_transaction:,} bytes): at least "
        f"{size:,}. In a stream, let a micro-batch have less (maxOffsetsPerTrigger, "
        "maxFilesPerTrigger and the like of its source). For a batch write, set atomic=false, "
        "where each task commits alone, and give it more partitions; or raise maxTransactionBytes."
    )
