"""Cuts a micro-batch into partitions that end at about the same time.

A micro-batch is over when its last task is, and the next one begins only then. So a part of the log
that several queues share is split finer than in a batch query, and evenly. A task costs Spark some
milliseconds, so small ranges share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import PartitionOptions
from rmqstore_spark.datasource.partitions import AnyPartition, partitions_of
from rmqstore_spark.datasource.spec import AnySource, SourceBroker

if TYPE_CHECKING:
    from rmqstore_spark.reader.rows.splits import QueueRange, Split

__all__ = ["batch_partitions"]

_PACK: Final = 1 << 20
_STRETCH: Final = 64 << 20
_TASKS: Final = 4
"""Even for one, two and four cores. How many a cluster has is not known here, and each task looks
at all its queues, so a query of many cores states `minPartitions`."""


def batch_partitions(
    opened: Sequence[AnySource],
    ranges: Mapping[QueueKey, tuple[int, int]],
    partitions: PartitionOptions,
) -> list[AnyPartition]:
    """Cut the ranges of a micro-batch into partitions.

    Args:
        opened: the open stores and brokers.
        ranges: the first offset of each queue, and one past the last.
        partitions: the stream's limits.
    """
    from rmqstore_spark.reader.rows.splits import QueueRange

    by_broker: dict[str, list[QueueRange]] = {}
    for key, (first, last) in ranges.items():
        wanted = QueueRange(key.topic, key.queue_id, first, last)
        by_broker.setdefault(key.broker, []).append(wanted)
    total = sum(wanted.count for own in by_broker.values() for wanted in own)
    return partitions_of(
        (of, _plan_store(of, by_broker[of.store.broker_name], total, partitions))
        for of in opened
        if of.store.broker_name in by_broker
    )


def _plan_store(
    of: AnySource, ranges: Sequence[QueueRange], total: int, partitions: PartitionOptions
) -> list[list[Split]]:
    from rmqstore_spark.reader.plan import PlanLimits, plan

    least = partitions.min_partitions
    if least is not None:
        least = max(1, round(least * sum(wanted.count for wanted in ranges) / total))
    limits = PlanLimits(
        min_partitions=least,
        max_records=partitions.max_records,
        max_bytes=min(partitions.max_bytes, _STRETCH),
        multiple=_TASKS,
    )
    if isinstance(of, SourceBroker):
        return _packed(of.store.plan(ranges, limits), least)
    return _packed(plan(of.store, ranges, limits, by=partitions.plan_by), least)


def _packed(splits: Sequence[Split], least: int | None) -> list[list[Split]]:
    """Group small splits, neighbours with neighbours.

    Args:
        splits: the splits of one store.
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
