"""Follow the stores of a stream, from one micro-batch to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.datasource.offsets import (
    Offsets,
    QueueKey,
    as_start,
    decode_offsets,
    encode_offsets,
    packed_by_topic,
)
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.partitions import StorePartition, partitions_of
from rmqstore_spark.datasource.resolve import starting_offsets
from rmqstore_spark.datasource.stores import check_topics, open_stores
from rmqstore_spark.datasource.stream.catchup import (
    advanced,
    batch_ranges,
    limited_ends,
    reconciled,
    starting_marks,
)
from rmqstore_spark.datasource.stream.progress import GroupProgress
from rmqstore_spark.datasource.stream.watch import Watch

if TYPE_CHECKING:
    from rmqstore_spark.reader.rows.splits import QueueRange, Split
    from rmqstore_spark.reader.store import Store

__all__ = ["Follower", "packed"]

# A task costs Spark some milliseconds, so small ranges share one. A part of the log that several
# queues share is split finer than in a batch query, and evenly: a micro-batch is over when its last
# task is, and the next one begins only then. Four is even for one, two and four cores. How many a
# cluster has is not known here, and each task looks at all its queues, so a query of many cores
# states `minPartitions`.
_PACK: Final = 1 << 20
_STRETCH: Final = 32 << 20
_TASKS: Final = 4


class Follower:
    """The position of a stream, and the messages that it has not read yet.

    Args:
        options: the stream's options.
        clock: returns seconds since any moment.

    Raises:
        UnsupportedStoreError: a store has no queues.
    """

    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._opened = open_stores(options)
        for opened in self._opened:
            opened.store.require_queues("A stream")
        self._watch = Watch(options, [opened.store for opened in self._opened], clock)
        self._progress: GroupProgress | None = None
        if options.commit_group is not None and options.connection is not None:
            self._progress = GroupProgress(options.commit_group, options.connection, self._opened)
        self._targets: dict[QueueKey, int] | None = None
        self._start: Mapping[str, Any] = {}
        self._known: Offsets = {}
        self._marks: Offsets = {}
        self._checked: Offsets = {}
        self._look_anyway = True
        self._held_since: float | None = None
        self._newest: dict[str, Any] | None = None

    def close(self) -> None:
        """Close the stores."""
        if self._progress is not None:
            self._progress.close()
        for opened in self._opened:
            opened.store.close()

    def initial(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts; always the same ones."""
        return encode_offsets(self._initial)

    @cached_property
    def _initial(self) -> Offsets:
        check_topics(self._options, [opened.store for opened in self._opened])
        queues = self._watch.queues
        return starting_marks(starting_offsets(list(queues.values()), self._options), queues)

    def end_at_present(self) -> None:
        """Read no further than the current end of the queues."""
        self._watch.look_closely()
        self._targets = {key: chosen.queue.max_offset for key, chosen in self._watch.queues.items()}

    @property
    def is_at_end(self) -> bool:
        """Whether the end is fixed, so that waiting brings nothing."""
        return self._targets is not None

    def start_from(self, start: Mapping[str, Any]) -> None:
        """Set the offsets at which the next micro-batch starts.

        Spark asks for the end of a micro-batch only when the one before has finished. So all
        messages before these offsets are processed.
        """
        if start != self._start:
            self._start = start
            self._known = self._marks = as_start(decode_offsets(start))
            self._look_anyway = True
            if self._progress is not None:
                self._progress.record(self._known)

    def latest(self, *, limited: bool) -> dict[str, Any] | None:
        """Return the offsets up to which the next micro-batch can read, or None without news.

        Args:
            limited: apply the options' limits.

        Raises:
            DataLossError: messages are lost, and `failOnDataLoss` is set.
        """
        if self._targets is None and self._watch.look():
            self._newest = None
            self._look_anyway = True
        # Messages that are held back are checked again when their delay is over, not at every look.
        released = self._held_since is not None and (not limited or self._is_overdue)
        if not (self._look_anyway or released):
            return None
        self._look_anyway = False
        end = self._next(limited)
        return None if end is None else encode_offsets(end)

    def _next(self, limited: bool) -> Offsets | None:
        queues = self._watch.queues
        # Kept, so that a loss is logged only once, however long messages are held back.
        marks = self._marks = reconciled(self._marks, queues, self._options, self._checked)
        ends = {key: max(mark.next, self._end_of(key)) for key, mark in marks.items()}
        waiting = sum(end - marks[key].next for key, end in ends.items())
        if limited:
            if self._is_held(waiting):
                return None
            ends = limited_ends(marks, ends, queues, self._options)
        end = advanced(marks, ends, queues)
        # A new queue without messages is not news.
        end = {key: mark for key, mark in end.items() if key in self._known or mark != marks[key]}
        return None if end == self._known else end

    def _end_of(self, key: QueueKey) -> int:
        chosen = self._watch.queues[key]
        if self._targets is None:
            return chosen.queue.max_offset
        return min(chosen.queue.max_offset, self._targets.get(key, 0))

    def _is_held(self, waiting: int) -> bool:
        """Return whether there are too few messages to read yet (`minOffsetsPerTrigger`)."""
        least = self._options.min_rows
        if least is None or self._targets is not None:
            return False
        if waiting and self._held_since is None:
            self._held_since = self._clock()
        if waiting < least and not self._is_overdue:
            return True
        self._held_since = None
        return False

    @property
    def _is_overdue(self) -> bool:
        """Whether messages were held back for the maximum delay."""
        since = self._held_since
        return since is not None and (self._clock() - since) * 1000 >= self._options.max_delay_ms

    def newest(self) -> dict[str, Any] | None:
        """Return how far the queues reach, as `{broker: {topic: "0:167 1:166"}}`."""
        if self._newest is None:
            ends = {key: self._end_of(key) for key in self._watch.queues}
            self._newest = {"queues": packed_by_topic(ends, str)} if ends else {}
        return self._newest or None

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[StorePartition]:
        """Plan a micro-batch.

        Raises:
            DataLossError: messages of the batch are lost, and `failOnDataLoss` is set.
        """
        from rmqstore_spark.reader.rows.splits import QueueRange

        if start == end:
            return []  # although the end still holds where an earlier micro-batch began
        ranges = batch_ranges(
            decode_offsets(start), decode_offsets(end), self._watch.queues, self._options
        )
        by_broker: dict[str, list[QueueRange]] = {}
        for key, (first, last) in ranges.items():
            wanted = QueueRange(key.topic, key.queue_id, first, last)
            by_broker.setdefault(key.broker, []).append(wanted)
        total = sum(wanted.count for own in by_broker.values() for wanted in own)
        return partitions_of(
            (of.spec, self._plan_store(of.store, by_broker[of.store.broker_name], total))
            for of in self._opened
            if of.store.broker_name in by_broker
        )

    def _plan_store(
        self, store: Store, ranges: Sequence[QueueRange], total: int
    ) -> list[list[Split]]:
        from rmqstore_spark.reader.plan import PlanLimits, plan

        options = self._options
        least = options.min_partitions
        if least is not None:
            least = max(1, round(least * sum(wanted.count for wanted in ranges) / total))
        limits = PlanLimits(
            min_partitions=least,
            max_records=options.max_records_per_partition,
            max_bytes=min(options.max_bytes_per_partition, _STRETCH),
            multiple=_TASKS,
        )
        return packed(plan(store, ranges, limits, by=options.plan_by), least)


def packed(splits: Sequence[Split], least: int | None = None) -> list[list[Split]]:
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
