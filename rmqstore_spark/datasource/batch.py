"""Plan a batch query; what it reads is fixed at that time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.table import PositionOptions
from rmqstore_spark.datasource.partitions import limits_of, partitions_of, read_partition
from rmqstore_spark.datasource.resolve import ending_offsets, starting_offsets
from rmqstore_spark.datasource.schema import Projection
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.datasource.sources.failover import FAILURES
from rmqstore_spark.datasource.sources.queues import (
    check_pattern,
    check_topics,
    chosen_queues,
    topics_of,
)
from rmqstore_spark.datasource.sources.source import ChosenQueue, Source, SourcePartition
from rmqstore_spark.datasource.tasks import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import QueueRange, Split


class RmqStoreReader(SentToTasks, DataSourceReader):
    """Plans a batch query on the driver, and reads its partitions in the tasks."""

    def __init__(self, options: Options, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    @plain_errors
    def partitions(self) -> list[SourcePartition]:
        """Plan the query: see `docs/options.md`, `planBy`."""
        return self.planned()

    def planned(self, multiple: int = 1) -> list[SourcePartition]:
        """Plan the query.

        Args:
            multiple: see `PlanLimits`.
        """
        options = self._options
        opened = open_sources(options)  # any replica of each; fails if none can be opened
        failure: Exception | None = None
        for number in range(max((source.replicas for source in opened), default=0)):
            # What one replica lacks, another one may have.
            if number:
                opened = open_sources(options, number)
            try:
                return _planned(options.strict, opened, multiple)
            except FAILURES as error:
                failure = failure or error
        if failure is None:
            return _planned(options, opened, multiple)
        if options.positions.fail_on_data_loss:
            raise failure
        return _planned(options, open_sources(options), multiple)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return read_partition(partition, self._options, self._projection)


def _planned(options: Options, opened: Sequence[Source], multiple: int) -> list[SourcePartition]:
    """Plan the partitions, and close the sources."""
    try:
        planned = plan_sources(options, opened, multiple)
        return partitions_of(
            (source, [[split] for split in splits])
            for source, splits in zip(opened, planned, strict=True)
        )
    finally:
        for source in opened:
            source.close()


def plan_sources(
    options: Options, opened: Sequence[Source], multiple: int = 1
) -> list[Sequence[Split]]:
    """Plan each source of a batch query.

    Args:
        multiple: see `PlanLimits`.
    """
    known = topics_of(opened)
    check_topics(options.queues, known)
    check_pattern(options.queues, known)
    held = {source: topics for source, topics in known.items() if source.has_queues}
    chosen = list(chosen_queues(options.queues, held))
    ranges = _ranges(options.positions, chosen) if held else {}
    total = sum(part.count for parts in ranges.values() for part in parts)
    plans: list[Sequence[Split]] = []
    for source in opened:
        own = ranges.get(source.broker_name, [])
        limits = limits_of(options.partitions, own, total, multiple)
        plans.append(source.plan(own, limits, options))
    return plans


def _ranges(
    positions: PositionOptions, chosen: Sequence[ChosenQueue]
) -> dict[str, list[QueueRange]]:
    from rmqstore_spark.reader.options import QueueRange

    starts = starting_offsets(chosen, positions)
    ends = ending_offsets(chosen, positions, starts)
    ranges: dict[str, list[QueueRange]] = {}
    for key, start in starts.items():
        ranges.setdefault(key.broker, []).append(
            QueueRange(key.topic, key.queue_id, start, ends[key])
        )
    return ranges
