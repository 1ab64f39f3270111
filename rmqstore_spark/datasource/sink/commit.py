"""What tasks report to the driver, and what it does with that.

It commits when all tasks are done, and aborts when one has finally failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.sink_table import DeliveryOptions
from rmqstore_spark.datasource.sink.masters import at_master
from rmqstore_spark.errors import OptionError, RefusedError, RmqStoreError, ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo, WriterId


_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Place:
    """Identifies a task.

    Args:
        partition: number of the partition; the same for all attempts of a task.
        query_id: id of the stream's query, the same over all its restarts; None without a stream.
        batch_id: number of the micro-batch.
    """

    partition: int
    query_id: str | None
    batch_id: int

    @property
    def micro_batch(self) -> str:
        """The name of the micro-batch among all, the same when it is run again.

        Raises:
            RmqStoreError: Spark did not pass the id of the query.
        """
        if self.query_id is None:
            raise RmqStoreError(
                "Spark did not pass the id of this micro-batch's query, so consumers could not "
                "tell repeated rows. Write in foreachBatch."
            )
        return f"{self.query_id}/{self.batch_id}"

    @classmethod
    def here(cls) -> Place:
        """Return the current task's place; callable only in a task of Spark."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this is not a Spark task")
        batch = context.getLocalProperty(_BATCH_ID)
        return cls(context.partitionId(), context.getLocalProperty(_QUERY_ID), int(batch or 0))


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """What a task reports to the driver.

    Args:
        place: the task.
        stages: its stages, in order, by the store's number among the endpoints.
        rows: number of rows that it has read.
    """

    place: Place
    stages: Mapping[int, tuple[StageInfo, ...]]
    rows: int


START_AGAIN: Final = "Start the query again with the same checkpoint."
"""How a stream continues after its store process was unavailable."""

_ABORT_RETRIES: Final = 5
"""The process removes stages by itself, so a failed query need not wait for it long."""

_log = logging.getLogger("rmqstore_spark")


def check_write_size(size: int, delivery: DeliveryOptions, what: str) -> None:
    """Refuse a commit of too many bytes.

    Raises:
        OptionError: it has more than maxTransactionBytes.
    """
    most = delivery.max_write
    if size <= most:
        return
    fault = f"{what} has more than maxTransactionBytes ({most:,} bytes): at least {size:,}"
    if not delivery.atomic:
        raise OptionError(
            f"{fault}. With atomic=false, the limit applies to each task. Use more partitions "
            "(repartition), or increase maxTransactionBytes."
        )
    raise OptionError(
        f"{fault}. In a stream, make micro-batches smaller (maxOffsetsPerTrigger, "
        "maxFilesPerTrigger or a similar option of the source). In a batch write, set "
        "atomic=false, so that each task commits separately, and use more partitions. Or increase "
        "maxTransactionBytes."
    )


def commit_stages(
    connection: ConnectionOptions,
    delivery: DeliveryOptions,
    writer: WriterId,
    done: Iterable[TaskDone],
) -> None:
    """Commit what tasks have staged: on each store all of it, once.

    A store without anything to commit is left out, so that an empty write leaves no trace.

    Args:
        connection: the stores.
        delivery: how much they may commit.
        writer: identifies the commit; repeating a commit does nothing.
        done: the tasks' reports, in any order.

    Raises:
        RefusedError: a store refuses. For example, it was restarted and the stages are gone, or
            this writer's number was committed with other rows.
        ServiceError: a store process cannot be reached.
    """
    by_store = _by_store(done)
    total = sum(info.bytes for stages in by_store.values() for info in stages)
    check_write_size(total, delivery, "this write")
    committed: list[str] = []
    for store, stages in sorted(by_store.items()):
        endpoint = connection.endpoints[store]
        try:
            reply = _commit_at_master(connection, store, writer, stages)
        except (RefusedError, ServiceError) as error:
            raise _explained(error, writer, committed) from None
        committed.append(endpoint)
        _log.info("%s: %s %s of %s", endpoint, reply.status, writer.number, writer.name)


def use_number(connection: ConnectionOptions, writer: WriterId, done: TaskDone) -> None:
    """Use the number of a write whose tasks commit separately, at all stores, if it has rows.

    The rows of each task have a writer of their own. Without this, a store could not tell the same
    write with `atomic=true` from a new one.

    Args:
        connection: the stores.
        writer: identifies the whole write; repeating the call does nothing.
        done: the task's report.

    Raises:
        RefusedError: the number was used for rows, by a write with `atomic=true`.
        ServiceError: a store process cannot be reached.
    """
    if done.stages:
        for endpoint in connection.endpoints:
            with connection.client(endpoint) as client:
                client.commit(_request(writer, ()))


def _by_store(done: Iterable[TaskDone]) -> dict[int, list[StageInfo]]:
    """Return the stages for each store, in the order of the partitions."""
    found: dict[int, list[StageInfo]] = {}
    for task in sorted(done, key=lambda task: task.place.partition):
        for store, infos in task.stages.items():
            found.setdefault(store, []).extend(infos)
    return found


def _commit_at_master(
    connection: ConnectionOptions, store: int, writer: WriterId, stages: Sequence[StageInfo]
) -> CommitResult:
    """Commit at a store; if its master changed meanwhile, ask the new one whether it has the batch.

    It has the batch if only the answer was lost. If it does not, it refuses: the stages have gone
    with the former master.
    """
    request = _request(writer, stages)
    return at_master(connection, store, lambda client: client.commit(request))


def _request(writer: WriterId, stages: Sequence[StageInfo]) -> CommitRequest:
    from rmqstore_spark.base.types import CommitRequest

    return CommitRequest(writer, tuple(stages))


def with_advice(error: RmqStoreError) -> RmqStoreError:
    """Extend the error of a stream with how to continue, if the store process was unavailable."""
    from rmqstore_spark.wire.protocol import UNAVAILABLE

    if isinstance(error, RefusedError) and error.status == UNAVAILABLE:
        return RefusedError(f"{error.args[0]} {START_AGAIN}", error.status)
    return ServiceError(f"{error} {START_AGAIN}") if isinstance(error, ServiceError) else error


def _explained(error: RmqStoreError, writer: WriterId, committed: Sequence[str]) -> RmqStoreError:
    """Extend an error with how to continue, and with the stores that committed their part."""
    if not committed:
        return with_advice(error) if writer.kind == "stream" else error
    remedy = {
        "stream": "Restart the query with its checkpoint",
        "batch": "Run the write again with the same txnAppId and txnVersion",
    }.get(writer.kind)
    what = f"{', '.join(committed)} has already committed its part of this write. "
    if remedy is None:
        what += (
            "Running the write again stores that part twice. To avoid that, set txnAppId and "
            "txnVersion."
        )
    else:
        what += f"{remedy} and the same rows: committed rows are not stored again."
    text = f"{error} {what}"
    if isinstance(error, RefusedError):
        return RefusedError(text, error.status)
    return ServiceError(text)


def abort_stages(connection: ConnectionOptions, done: Iterable[TaskDone | None]) -> None:
    """Discard what tasks have staged. Committed stages stay; a failure is only logged.

    If a stage cannot be discarded now, the store process removes it later (stagingTimeout).
    """
    hurried = replace(connection, retries=min(connection.retries, _ABORT_RETRIES))
    for store, stages in _by_store(task for task in done if task is not None).items():
        endpoint = connection.endpoints[store]
        try:
            with hurried.client(endpoint) as client:
                client.abort([info.stage_id for info in stages])
        except RmqStoreError as error:
            _log.warning("Staged rows at %s could not be discarded now: %s", endpoint, error)
