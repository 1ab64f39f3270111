"""What a task tells the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from rmqstore_spark.types import StageInfo

__all__ = ["Place", "TaskDone"]

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
