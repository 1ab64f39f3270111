"""The writers that Spark calls, for a batch write and for a stream, and what a task of them does.

Spark creates them in the planner, sends them to the tasks, and brings them back to the driver for
the commit. A stream's writer is created again for each commit. So they hold options, but no
connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import SinkOptions
from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.commit import (
    Place,
    TaskDone,
    abort_stages,
    commit_stages,
    use_number,
    with_advice,
)
from rmqstore_spark.datasource.sink.memory import keep_freed_memory
from rmqstore_spark.datasource.spark_api import StreamArrowWriter
from rmqstore_spark.datasource.tasks import SentToTasks, short_collections
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.base.types import WriterId
    from rmqstore_spark.produce.uniq_key import RowKeys


IDLE_SECONDS: Final = 20.0
"""How long a stream may have nothing to send before it is ended; a store process ends streams that
are idle for longer (streamIdleTimeout, a minute)."""


@short_collections()
def run_task(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    place: Place,
    first_turn: int,
    write_name: str,
    idle_seconds: float = IDLE_SECONDS,
) -> TaskDone:
    """Write the rows of one partition.

    Args:
        options: the write's options.
        columns: the positions of the columns in the batches.
        batches: Spark's batches.
        place: the task.
        first_turn: see `Router`.
        write_name: of the write among all, the same when it is run again.
        idle_seconds: how long a stream to a store may have nothing to send.

    Raises:
        RowError: a row cannot become a message.
        TopicNotFoundError: a topic does not exist, or cannot be written.
        RefusedError: a store refuses records.
        ServiceError: a store process cannot be reached.
    """
    if options.target.to_brokers:
        from rmqstore_spark.produce.uniq_key import RowKeys

        keys = RowKeys(f"{write_name}/{place.partition}")
        return TaskDone(place, {}, _send(options, columns, batches, first_turn, keys))
    from rmqstore_spark.datasource.sink.encode import RowEncoder, StoreBlocks
    from rmqstore_spark.datasource.sink.sending import (
        PutSending,
        Sending,
        StageSending,
        TargetStores,
    )

    keep_freed_memory()
    with ExitStack() as held:
        connection = options.target.connection
        clients = [
            held.enter_context(connection.client(endpoint)) for endpoint in connection.endpoints
        ]
        stores = TargetStores(clients, options.messages.topic)
        blocks = StoreBlocks(stores.opened, stores.queues)
        encoder = RowEncoder(options.messages, columns, blocks, first_turn)
        kind: type[Sending[Any]] = StageSending if options.delivery.exactly_once else PutSending
        sending = held.enter_context(kind(options.delivery, clients, idle_seconds))
        rows = 0
        for batch in batches:
            rows += len(batch)
            for block in encoder.encode(batch):
                sending.send(block)
        return TaskDone(place, sending.finish(), rows)


def _send(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    first_turn: int,
    row_keys: RowKeys,
) -> int:
    """Send the rows of one partition to brokers; return how many there are."""
    from rmqstore_spark.client.brokers.routes import PublishRoutes
    from rmqstore_spark.client.brokers.sending import MessageSender
    from rmqstore_spark.datasource.sink.encode import RowEncoder
    from rmqstore_spark.datasource.sink.requests import BrokerRequests
    from rmqstore_spark.remoting.access.identity import ClientIdentity

    target = options.target
    connection = target.connection
    answer_s = connection.timeout_ms / 1000
    identity = ClientIdentity.of(connection.identity)
    routes = PublishRoutes(
        target.name_servers,
        answer_s,
        identity,
        target.broker_names,
        connect_s=connection.connect_s,
        retries=connection.retries,
    )
    requests = BrokerRequests(routes)
    encoder = RowEncoder(options.messages, columns, requests, first_turn, row_keys=row_keys)
    most = options.delivery.max_in_flight
    sender = MessageSender(routes, most, answer_s, connection.retries, identity)
    rows = 0
    with closing(sender):
        for batch in batches:
            rows += len(batch)
            for out in encoder.encode(batch):
                sender.send(out)
        sender.finish()
    return rows


class RmqStoreWriter(SentToTasks, DataSourceArrowWriter):
    """A batch write: all rows appear at once when Spark commits, or none.

    With `atomic=false` each task commits alone, and Spark's commit has nothing left to do.

    Args:
        options: the write's options.
        columns: the positions of the columns in the rows.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._id = uuid4().hex

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, in a task."""
        place = Place.here()
        known = self._options.delivery.batch_version
        version = known.version if known is not None else 0
        first_turn = place.partition + version
        name = self._id if known is None else f"{known.app_id}/{version}"
        done = run_task(self._options, self._columns, iterator, place, first_turn, name)
        delivery, connection = self._options.delivery, self._options.target.connection
        if not delivery.exactly_once or delivery.atomic:
            return done
        try:
            if known is not None:
                use_number(connection, self._writer_id(), done)
            commit_stages(connection, delivery, self._writer_id(place.partition), [done])
        except RefusedError:
            abort_stages(connection, [done])  # Spark tells nobody what a failed task has staged
            raise
        return TaskDone(place, {}, done.rows)

    @plain_errors
    @short_collections()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make everything that was staged appear, once."""
        options = self._options
        connection = options.target.connection
        commit_stages(connection, options.delivery, self._writer_id(), _all_done(messages))

    @plain_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Discard everything that was staged."""
        abort_stages(self._options.target.connection, _done(messages))

    def _writer_id(self, partition: int | None = None) -> WriterId:
        from rmqstore_spark.base.types import WriterId

        part = "" if partition is None else f"/{partition}"
        known = self._options.delivery.batch_version
        if known is None:
            return WriterId.of_one_write(self._id + part)
        return WriterId.of_batch(known.app_id + part, known.version)


class RmqStoreStreamWriter(SentToTasks, StreamArrowWriter):
    """A stream: each micro-batch appears whole and once.

    Args:
        options: the write's options.
        columns: the positions of the columns in the rows.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a micro-batch, in a task."""
        place = Place.here()
        first_turn = place.partition + place.batch_id
        try:
            return run_task(
                self._options, self._columns, iterator, place, first_turn, place.micro_batch
            )
        except (RefusedError, ServiceError) as error:
            raise with_advice(error) from None

    @plain_errors
    @short_collections()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make a micro-batch appear; Spark may repeat the call."""
        from rmqstore_spark.base.types import WriterId

        done = _all_done(messages)
        if not any(task.stages for task in done):
            return
        queries = {task.place.query_id for task in done}
        query = queries.pop()
        if query is None or queries:
            raise RmqStoreError(
                "Spark did not pass the id of this micro-batch's query, so a repeated commit "
                "could not be detected. Write in foreachBatch, with txnAppId and txnVersion."
            )
        options, writer = self._options, WriterId.of_stream(query, batchId)
        commit_stages(options.target.connection, options.delivery, writer, done)

    @plain_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        """Discard everything that was staged."""
        abort_stages(self._options.target.connection, _done(messages))


def _all_done(messages: Sequence[Any]) -> list[TaskDone]:
    """Return the reports of all tasks, which a commit needs."""
    done = _done(messages)
    if len(done) < len(messages):
        at = next(n for n, message in enumerate(messages) if not isinstance(message, TaskDone))
        raise RmqStoreError(
            f"Spark committed without the result of task {at} of {len(messages)}. Nothing was "
            "committed. Run the write again."
        )
    return done


def _done(messages: Sequence[Any]) -> list[TaskDone]:
    """Return the reports of tasks; failed tasks have none."""
    return [message for message in messages if isinstance(message, TaskDone)]
