"""Make the partitions of a plan, and read one in a task: a few splits of one source.

A micro-batch is over when its last task is, and the next one begins only then. So a part of the log
that several queues share is split finer than in a batch query, and evenly. A task costs Spark some
milliseconds, so small ranges share one.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqstore_spark.datasource.failures import hide_traceback
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.table import PartitionOptions
from rmqstore_spark.datasource.schema import Projection
from rmqstore_spark.datasource.sources.source import Source, SourcePartition
from rmqstore_spark.datasource.tasks import one_ahead, short_collections
from rmqstore_spark.errors import RmqStoreError

if TYPE_CHECKING:
    from rmqstore_spark.reader.options import QueueRange, ReadOptions, Split
    from rmqstore_spark.reader.plan import PlanLimits
    from rmqstore_spark.reader.void import VoidEntries

_PACK: Final = 1 << 20
_STRETCH: Final = 128 << 20
EVEN: Final = 4
"""So many tasks, or a multiple, end at the same time on one, two and four cores. How many a cluster
has is not known here, and each task looks at all its queues, so a stream of many cores states
`minPartitions`."""


def partitions_of(
    planned: Iterable[tuple[Source, Sequence[Sequence[Split]]]],
) -> list[SourcePartition]:
    """Create the partitions of one planning: groups of splits for each source."""
    plan = uuid4().hex
    return [part for source, groups in planned for part in source.partitions(plan, groups)]


def limits_of(
    partitions: PartitionOptions, ranges: Sequence[QueueRange], total: int, multiple: int
) -> PlanLimits:
    """Return the limits of one source, from which some of a total of records are read.

    Args:
        multiple: see `PlanLimits`.
    """
    from rmqstore_spark.reader.plan import PlanLimits

    least = partitions.min_partitions
    if least is not None:
        least = max(1, round(least * sum(wanted.count for wanted in ranges) / max(1, total)))
    return PlanLimits(least, partitions.max_records, partitions.max_bytes, multiple)


def batch_partitions(
    opened: Sequence[Source], ranges: Mapping[QueueKey, tuple[int, int]], options: Options
) -> list[SourcePartition]:
    """Cut the ranges of a micro-batch into partitions that end at about the same time.

    Args:
        ranges: the first offset of each queue, and one past the last.
    """
    from rmqstore_spark.reader.options import QueueRange

    by_broker: dict[str, list[QueueRange]] = {}
    for key, (first, last) in ranges.items():
        wanted = QueueRange(key.topic, key.queue_id, first, last)
        by_broker.setdefault(key.broker, []).append(wanted)
    total = sum(wanted.count for own in by_broker.values() for wanted in own)
    return partitions_of(
        (source, _plan_source(source, by_broker[source.broker_name], total, options))
        for source in opened
        if source.broker_name in by_broker
    )


def _plan_source(
    source: Source, ranges: Sequence[QueueRange], total: int, options: Options
) -> list[list[Split]]:
    # A task costs a micro-batch 20 ms: no more of them than this machine runs, if it runs them.
    multiple = min(EVEN, os.cpu_count() or EVEN)
    limits = limits_of(options.partitions, ranges, total, multiple)
    finer = replace(limits, max_bytes=min(limits.max_bytes, _STRETCH))
    return _packed(source.plan(ranges, finer, options), limits.min_partitions)


def _packed(splits: Sequence[Split], least: int | None) -> list[list[Split]]:
    """Group small splits, neighbours with neighbours.

    Args:
        least: keep at least this many groups.
    """
    groups: list[list[Split]] = []
    spare = len(splits) - (least or 1)
    size = 0
    for split in splits:
        if groups and size + split.size <= _PACK and spare > 0:
            groups[-1].append(split)
            size += split.size
            spare -= 1
        else:
            groups.append([split])
            size = split.size
    return groups


def read_options(
    options: Options, projection: Projection, void: VoidEntries | None = None
) -> ReadOptions:
    """Convert a query's options to the reader's form; see `ReadOptions`."""
    from rmqstore_spark.reader.options import ReadOptions

    rows = options.rows
    return ReadOptions(
        columns=projection.columns,
        body_as_text=projection.body_as_text,
        decompress=rows.decompress,
        check_crc=rows.check_crc,
        mode=rows.mode,
        fail_on_data_loss=options.positions.fail_on_data_loss,
        tags=rows.tags,
        keys=rows.keys,
        void=void,
    )


def read_partition(
    partition: InputPartition,
    options: Options,
    projection: Projection,
    void: VoidEntries | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a partition; return nothing for the one that Spark creates for an empty plan.

    Args:
        void: takes note of the void entries that have no rows.
    """
    if not isinstance(partition, SourcePartition):
        return iter(())
    batches = partition.read(read_options(options, projection, void), options)
    read = one_ahead(batches) if partition.is_waited_for else batches
    return _run(read, projection.arrow_schema())


def _run(batches: Generator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with short_collections(), closing(batches):
        try:
            for batch in batches:
                if not len(schema) or batch.schema.equals(schema):
                    yield batch
                else:  # names as the user spelled them, and NOT NULL
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except RmqStoreError as error:
            hide_traceback(error)
            raise
