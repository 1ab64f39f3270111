"""Commit or abort on the driver, when all tasks are done or one has finally failed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.sink_table import DeliveryOptions
from rmqstore_spark.datasource.sink.options import check_write_size
from rmqstore_spark.datasource.sink.outcome import TaskDone
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError

if TYPE_CHECKING:
    from rmqstore_spark.base.types import CommitResult, StageInfo, WriterId

START_AGAIN: Final = "Start the query again with the same checkpoint."
"""How a stream continues after its store process was unavailable."""

_ABORT_RETRIES: Final = 5
"""The process removes stages by itself, so a failed query need not wait for it long."""

_log = logging.getLogger("rmqstore_spark")


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
            reply = _commit(connection, endpoint, writer, stages)
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
            _commit(connection, endpoint, writer, ())


def _by_store(done: Iterable[TaskDone]) -> dict[int, list[StageInfo]]:
    """Return the stages for each store, in the order of the partitions."""
    found: dict[int, list[StageInfo]] = {}
    for task in sorted(done, key=lambda task: task.place.partition):
        for store, infos in task.stages.items():
            found.setdefault(store, []).extend(infos)
    return found


def _commit(
    connection: ConnectionOptions, endpoint: str, writer: WriterId, stages: Sequence[StageInfo]
) -> CommitResult:
    from rmqstore_spark.base.types import CommitRequest

    with connection.client(endpoint) as client:
        return client.commit(CommitRequest(writer, tuple(stages)))


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
