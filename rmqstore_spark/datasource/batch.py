"""Plan a batch query; what it reads is fixed at that time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.positions import Earliest, Latest
from rmqstore_spark.datasource.options.table import PartitionOptions, PositionOptions
from rmqstore_spark.datasource.partitions import AnyPartition, partitions_of, read_partition
from rmqstore_spark.datasource.replicas import FAILURES
from rmqstore_spark.datasource.resolve import ending_offsets, starting_offsets
from rmqstore_spark.datasource.schema import Projection
from rmqstore_spark.datasource.spec import AnySource, SourceBroker
from rmqstore_spark.datasource.stores import (
    ChosenQueue,
    check_pattern,
    check_topics,
    chosen_queues,
    most_replicas,
    open_stores,
)
from rmqstore_spark.datasource.tasks import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.plan import PlanLimits
    from rmqstore_spark.reader.rows.splits import QueueRange, Split
    from rmqstore_spark.reader.store import Store

__all__ = ["RmqStoreReader"]


class RmqStoreReader(SentToTasks, DataSourceReader):
    """Plans a batch query on the driver, and reads its partitions in the tasks.

    Args:
        options: the query's options.
        projection: the requested columns.
    """

    def __init__(self, options: Options, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    @plain_errors
    def partitions(self) -> list[AnyPartition]:
        """Plan the query: see `docs/options.md`, `planBy`."""
        options = self._options
        failure: Exception | None = None
        for number in range(most_replicas(options)):
            # What one replica lacks, another one may have.
            opened = open_stores(options, number)  # any replica; fails if none can be opened
            try:
                return _planned(options.strict, opened)
            except FAILURES as error:
                failure = failure or error
        if failure is not None and options.positions.fail_on_data_loss:
            raise failure
        return _planned(options, open_stores(options, 0))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return read_partition(partition, self._options, self._projection)


def _planned(options: Options, opened: Sequence[AnySource]) -> list[AnyPartition]:
    """Plan the partitions, and close the stores."""
    try:
        return partitions_of(
            (of, [[split] for split in splits])
            for of, splits in zip(opened, plan_stores(options, opened), strict=True)
        )
    finally:
        for of in opened:
            of.store.close()


def plan_stores(options: Options, opened: Sequence[AnySource]) -> list[Sequence[Split]]:
    """Plan each store of a batch query."""
    with_queues = [of.store for of in opened if isinstance(of, SourceBroker) or of.store.has_queues]
    check_topics(options.queues, [of.store for of in opened])
    check_pattern(options.queues, [of.store for of in opened])
    chosen = list(chosen_queues(options.queues, with_queues))
    ranges = _ranges(options.positions, chosen) if with_queues else {}
    total = sum(part.count for parts in ranges.values() for part in parts)
    plans: list[Sequence[Split]] = []
    for of in opened:
        own = ranges.get(of.store.broker_name, [])
        share = sum(part.count for part in own) / total if total else 0.0
        if isinstance(of, SourceBroker):
            plans.append(of.store.plan(own, _limits(options.partitions, share)))
            continue
        if of.replicas:
            of.store.require_queues("A store with replicas", "Name one of them")
        if not of.store.has_queues:
            plans.append(_plan_scan(options, of.store))
            continue
        plans.append(_plan_queues(options, of.store, own, _limits(options.partitions, share)))
    return plans


def _ranges(
    positions: PositionOptions, chosen: Sequence[ChosenQueue]
) -> dict[str, list[QueueRange]]:
    from rmqstore_spark.reader.rows.splits import QueueRange

    starts = starting_offsets(chosen, positions)
    ends = ending_offsets(chosen, positions, starts)
    ranges: dict[str, list[QueueRange]] = {}
    for key, start in starts.items():
        ranges.setdefault(key.broker, []).append(
            QueueRange(key.topic, key.queue_id, start, ends[key])
        )
    return ranges


def _limits(partitions: PartitionOptions, share: float) -> PlanLimits:
    """Return the limits of one store's plan.

    Args:
        partitions: the query's limits.
        share: the store's share of all records to be read, 0 to 1.
    """
    from rmqstore_spark.reader.plan import PlanLimits

    least = partitions.min_partitions
    return PlanLimits(
        min_partitions=None if least is None else max(1, round(least * share)),
        max_records=partitions.max_records,
        max_bytes=partitions.max_bytes,
    )


def _plan_queues(
    options: Options, store: Store, ranges: Sequence[QueueRange], limits: PlanLimits
) -> Sequence[Split]:
    from rmqstore_spark.reader.plan import plan, plan_by_keys

    if options.rows.keys is not None:
        return plan_by_keys(store, ranges, limits)
    return plan(store, ranges, limits, by=options.partitions.plan_by)


def _needs_queues(store: Store, option: str) -> None:
    store.require_queues(option, f"Remove {option} to read the whole store")


def _plan_scan(options: Options, store: Store) -> Sequence[Split]:
    """Plan the reading of a store that has only its log."""
    from rmqstore_spark.reader.plan import plan_scan

    if options.partitions.plan_by == "queue":
        store.require_queues("planBy=queue")
    positions = options.positions
    if not isinstance(positions.starting, Earliest):
        _needs_queues(store, positions.starting_option)
    if not isinstance(positions.ending, Latest):
        _needs_queues(store, positions.ending_option)
    if options.partitions.max_records is not None:
        _needs_queues(store, "maxRecordsPerPartition")
    topics = options.queues.named
    return plan_scan(store, None if topics is None else frozenset(topics))
