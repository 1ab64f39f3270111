"""The writers that Spark calls, for a batch write and for a stream.

Spark creates them in the planner, sends them to the tasks, and brings them back to the driver for
the commit. A stream's writer is created again for each commit. So they hold options, but no
connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.sink.columns import SinkColumns
from rmqstore_spark.datasource.sink.commit import (
    abort_stages,
    commit_stages,
    use_number,
    with_advice,
)
from rmqstore_spark.datasource.sink.options import SinkOptions
from rmqstore_spark.datasource.sink.outcome import Place, TaskDone
from rmqstore_spark.datasource.sink.task import run_task
from rmqstore_spark.datasource.spark_api import StreamArrowWriter
from rmqstore_spark.datasource.tasks import SentToTasks
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.base.types import WriterId


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
