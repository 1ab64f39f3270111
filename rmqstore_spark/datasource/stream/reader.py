"""Read a stream: the offsets and the partitions of its micro-batches."""

# ruff: noqa: N802 - the methods' names are Spark's

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import Options, parse_options
from rmqstore_spark.datasource.schema import Projection, project
from rmqstore_spark.datasource.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from rmqstore_spark.datasource.tables import query_options
from rmqstore_spark.datasource.tasks import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.datasource.stream.follower import Follower

# Seconds. Answering Spark costs more than many looks at the log. So the longer a query has been
# idle, the later it is answered, and the less often the log is checked. (When the query stops,
# Spark ends this process, even while it waits.)
_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 0.5
_OF_QUIET: Final = 0.05
_AT_ONCE: Final = 0.05
_STEPS: Final = 12


class RmqStoreStreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the queues of some stores on the driver, and reads micro-batches in the tasks.

    A query creates it twice: in the process that lives as long as the query, and in one that only
    sends it to the tasks. So nothing is opened, and no error is raised, before it is used. (An
    error of the constructor would reach the user as one of Spark's own.)
    """

    def __init__(
        self,
        given: Mapping[str, str],
        schema: StructType,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._given = dict(given)
        self._schema = schema
        self._clock = clock
        self._sleep = sleep
        self._quiet_since: float | None = None
        self._answered = 0.0

    @cached_property
    def _options(self) -> Options:
        return parse_options(query_options(self._given, self._schema), streaming=True)

    @cached_property
    def _projection(self) -> Projection:
        return project(self._schema)

    @cached_property
    def _follower(self) -> Follower:
        from rmqstore_spark.datasource.stream.follower import Follower

        _ = self._projection  # reports errors in the schema at the start
        return Follower(self._options, self._clock)

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts. Spark asks twice, and gets the same answer."""
        return self._follower.initial()

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits. Spark accepts only one; `latestOffset` applies all of them."""
        limits = self._options.trigger
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_rows is not None:
            return ReadMinRows(limits.min_rows)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the current end of the queues."""
        self._follower.end_at_present()

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends, or `start` itself if nothing is new.

        Waits a little for news, because an idle query asks again at once.
        """
        limited = not isinstance(limit, ReadAllAvailable)
        patience = self._patience()
        give_up = self._clock() + patience
        follower = self._follower
        follower.start_from(start)
        while True:
            end = follower.latest(limited=limited)
            if end is not None:
                self._quiet_since = None
                return end
            self._answered = self._clock()
            if follower.is_at_end or self._answered >= give_up:
                return start
            self._sleep(patience / _STEPS)

    def _patience(self) -> float:
        """Return how many seconds to wait for news: the longer without news, the more.

        The wait stays short if Spark did something else since the last answer. It may read another
        source of the query, which this one would delay, or use a trigger with an interval, which
        this one would overrun.
        """
        now = self._clock()
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._answered > _AT_ONCE:
            return _WAIT
        return min(max(_WAIT, (now - self._quiet_since) * _OF_QUIET), _LONGEST_WAIT)

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the queues reach, for the query's progress."""
        return self._follower.newest()

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch; after a restart `start` can be past `end`."""
        return self._follower.plan(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        from rmqstore_spark.datasource.partitions import read_partition

        return read_partition(partition, self._options, self._projection)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark keeps the checkpoint.

        It calls this a micro-batch late, and not at all for the last one. So `latestOffset` records
        the progress of a consumer group.
        """

    def stop(self) -> None:
        """Close the stores."""
        if "_follower" in self.__dict__:
            self._follower.close()
