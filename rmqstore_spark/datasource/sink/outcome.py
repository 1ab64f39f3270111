"""What a task reports to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from rmqstore_spark.errors import RmqStoreError

if TYPE_CHECKING:
    from rmqstore_spark.base.types import StageInfo

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
