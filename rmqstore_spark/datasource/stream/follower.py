"""Follow the stores of a stream, from one micro-batch to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, TypeVar

from rmqstore_spark.client.patience import rounds
from rmqstore_spark.datasource.offsets import (
    Mark,
    Offsets,
    QueueKey,
    as_start,
    packed_by_topic,
)
from rmqstore_spark.datasource.options.connection import patience_s
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.options.table import PositionOptions
from rmqstore_spark.datasource.partitions import batch_partitions
from rmqstore_spark.datasource.resolve import starting_offsets
from rmqstore_spark.datasource.sources.failover import FAILURES
from rmqstore_spark.datasource.sources.queues import check_topics, topics_of
from rmqstore_spark.datasource.sources.source import ChosenQueue, Needed, SourcePartition
from rmqstore_spark.datasource.stream.catchup import (
    advanced,
    batch_ranges,
    limited_ends,
    reconciled,
    starting_marks,
)
from rmqstore_spark.datasource.stream.followed import FollowedSources, State
from rmqstore_spark.datasource.stream.group_progress import GroupProgress
from rmqstore_spark.datasource.stream.resumed import KeptPositions, ResumedStores
from rmqstore_spark.errors import ReplicaError, ServiceError, TopicNotFoundError

_MOVES: Final = 8
_WAITING: Final = 1.0

T = TypeVar("T")


class Follower:
    """The position of a stream, and the messages that it has not read yet.

    Raises:
        UnsupportedStoreError: a store has no queues.
    """

    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._sources = FollowedSources(options, clock)
        self._stores = ResumedStores(
            self._sources.opened,
            may_lose=not options.positions.fail_on_data_loss,
            routed=bool(options.places.name_servers),
        )
        self._kept = KeptPositions(
            options.queues, {source.broker_name for source in self._sources.opened}
        )
        self._patience_s = patience_s(options.places.connection)
        self._progress = self._new_progress()
        self._targets: dict[QueueKey, int] | None = None
        self._start: Mapping[str, Any] = {}
        self._known: Offsets = {}
        self._marks: Offsets = {}
        self._checked: Offsets = {}
        self._look_anyway = True
        self._look_again_at = clock()
        self._held_since: float | None = None
        self._newest: dict[str, Any] | None = None
        self._relists = self._sources.relists

    def close(self) -> None:
        """Close the stores."""
        if self._progress is not None:
            self._progress.close()
        self._sources.close()

    def _new_progress(self) -> GroupProgress | None:
        group = self._options.positions.commit_group
        return None if group is None else GroupProgress(group, self._sources.opened, self._clock)

    def initial(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts; always the same ones."""
        return self._stores.encoded(self._initial)

    @cached_property
    def _initial(self) -> Offsets:
        for _ in self._sources.turns():  # what one replica lacks, another one may have
            self._moved()
            with suppress(*FAILURES):
                return self._find_initial(self._options.positions.strict)
        return self._read(self._find_initial, (), self._patience_s)

    def _find_initial(self, positions: PositionOptions) -> Offsets:
        self._sources.require_answers()
        check_topics(self._options.queues, topics_of(self._sources.opened))
        queues = self._sources.queues
        return starting_marks(starting_offsets(list(queues.values()), positions), queues)

    def _read(self, work: Callable[[PositionOptions], T], needed: Needed, seconds: float) -> T:
        """Read something from the stores. If a replica fails, continue at another.

        Args:
            work: what to do, with options that say whether a loss is allowed. As long as there
                are replicas to choose from, it is not.
            needed: positions that a replica must hold.
            seconds: how long to wait if no replica holds them.

        Raises:
            ReplicaError: no replica holds what is needed.
        """
        if not self._sources.has_replicas:
            return work(self._options.positions)
        failure: Exception | None = None
        for _ in rounds(seconds):
            for _ in range(_MOVES):
                try:
                    done = work(self._options.positions.strict)
                except FAILURES as error:
                    failure = error
                else:
                    self._sources.works()
                    return done
                before = self._sources.read_now()
                state = self._sources.repair(needed)
                if before != self._sources.read_now():
                    self._moved()  # also if another store waits for a replica
                if state is State.WAITING:
                    break
                if state is State.LOST or (
                    state is State.FINE and not isinstance(failure, ServiceError)
                ):
                    return work(self._options.positions)
        raise ReplicaError(
            f"No replica holds what the next micro-batch needs. {failure}", can_pass=True
        ) from failure

    def _moved(self) -> None:
        """Forget what was known of a store that another replica has taken the place of."""
        self._checked.clear()
        self._stores.moved()
        self._newest = None
        self._look_anyway = True
        if self._progress is not None:
            self._progress.close()
            self._progress = self._new_progress()

    def end_at_present(self) -> None:
        """Read no further than the current end of the queues."""
        self._read(lambda _: self._sources.look_closely(), (), self._patience_s)
        self._targets = {
            key: chosen.queue.max_offset for key, chosen in self._sources.queues.items()
        }

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
            (resumed,) = self._resumed(start)
            self._start = start
            self._known = self._marks = as_start(resumed)
            self._look_anyway = True
            self._record()

    def _resumed(self, *stored: Mapping[str, Any]) -> list[Offsets]:
        """Decode offsets of a checkpoint, under the names that its stores have now."""
        patience = self._patience_s
        return self._read(lambda _: self._stores.resumed(stored), (), patience)

    def _record(self) -> None:
        if self._progress is not None:
            with self._sources.hurried():
                self._progress.record(dict(self._needed()), self._sources.silent)

    def _needed(self) -> list[tuple[QueueKey, Mark]]:
        """Return the positions from which the stream reads on."""
        return [(key, mark) for key, mark in self._known.items() if self._kept.reads(key)]

    def _past_silence(self, work: Callable[[], T]) -> T:
        """Do something without brokers that do not answer, also if one falls silent meanwhile.

        Raises:
            ServiceError: something else does not answer.
        """
        if not self._sources.falls_silent:
            return work()
        while True:
            try:
                with self._sources.hurried():
                    return work()
            except ServiceError as error:
                if not error.can_pass:
                    raise
                if not self._sources.find_silent():
                    return work()  # it may take longer
                self._look_anyway = True

    def latest(self, *, limited: bool) -> dict[str, Any] | None:
        """Return the offsets up to which the next micro-batch can read, or None without news.

        Args:
            limited: apply the options' limits.

        Raises:
            DataLossError: messages are lost, and `failOnDataLoss` is set.
        """
        if self._clock() < self._look_again_at:
            return None
        needed = self._needed() if self._sources.has_replicas else []
        if self._sources.has_replicas and self._sources.prefer(needed):
            self._moved()
        patience = self._patience_s if self.is_at_end else 0.0

        def work(positions: PositionOptions) -> dict[str, Any] | None:
            if self.is_at_end:  # which all brokers must reach
                return self._latest(positions, limited)
            return self._past_silence(lambda: self._latest(positions, limited))

        try:
            return self._read(work, needed, patience)
        except ReplicaError as error:
            if self.is_at_end or not error.can_pass:
                raise  # with no news, Spark would end a query that reads up to now
            self._look_anyway = True
            self._look_again_at = self._clock() + _WAITING
            return None  # a replica that is behind has no news

    def _latest(self, positions: PositionOptions, limited: bool) -> dict[str, Any] | None:
        if self._targets is None and self._sources.look():
            self._newest = None
            self._look_anyway = True
            if self._relists != self._sources.relists:
                self._relists = self._sources.relists
                self._checked.clear()
        # Messages that are held back are checked again when their delay is over, not at every look.
        released = self._held_since is not None and (not limited or self._is_overdue)
        if not (self._look_anyway or released):
            return None
        end = self._next(positions, limited)
        self._look_anyway = False
        return None if end is None else self._stores.encoded(end)

    def _next(self, positions: PositionOptions, limited: bool) -> Offsets | None:
        queues = self._sources.queues
        left = self._kept.of(self._marks, queues, self._sources.silent, positions)
        marks = {key: mark for key, mark in self._marks.items() if key in queues}
        for key in left:
            self._checked.pop(key, None)
        self._sources.look_before(
            {
                key: mark.next
                for key, mark in marks.items()
                if key in queues
                and (queues[key].queue.max_offset != mark.next or self._checked.get(key) != mark)
            }
        )
        marks = reconciled(marks, queues, positions, self._checked)
        # Kept, so that a loss is logged only once, however long messages are held back.
        self._marks = {**marks, **left}
        ends = {key: max(mark.next, self._end_of(key)) for key, mark in marks.items()}
        waiting = sum(end - marks[key].next for key, end in ends.items())
        if limited:
            if self._is_held(waiting):
                return None
            ends = limited_ends(marks, ends, queues, self._options.trigger)
        self._sources.look_before({key: at for key, at in ends.items() if at > marks[key].next})
        end = advanced(marks, ends, queues)
        # A new queue without messages is not news.
        end = {key: mark for key, mark in end.items() if key in self._known or mark != marks[key]}
        end.update((key, mark) for key, mark in left.items() if key in self._known)
        return None if end == self._known else end

    def _end_of(self, key: QueueKey) -> int:
        chosen = self._sources.queues[key]
        if self._targets is None:
            return chosen.queue.max_offset
        return min(chosen.queue.max_offset, self._targets.get(key, 0))

    def _is_held(self, waiting: int) -> bool:
        """Return whether there are too few messages to read yet (`minOffsetsPerTrigger`)."""
        least = self._options.trigger.min_rows
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
        return (
            since is not None
            and (self._clock() - since) * 1000 >= self._options.trigger.max_delay_ms
        )

    def newest(self) -> dict[str, Any] | None:
        """Return how far the queues reach, as `{broker: {topic: "0:167 1:166"}}`."""
        if self._newest is None:
            try:
                ends = {key: self._end_of(key) for key in self._sources.queues}
            except FAILURES:
                if not self._sources.has_replicas:
                    raise
                return None  # the next look continues at another replica
            self._newest = {"queues": packed_by_topic(ends, str)} if ends else {}
        return self._newest or None

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SourcePartition]:
        """Plan a micro-batch.

        Raises:
            DataLossError: messages of the batch are lost, and `failOnDataLoss` is set.
        """
        if start == end:
            return []  # although the end still holds where an earlier micro-batch began
        first, last = self._resumed(start, end)
        return self._read(
            lambda positions: self._plan(positions, first, last),
            list(_held_for(first, last)),
            self._patience_s,
        )

    def _plan(
        self, positions: PositionOptions, start: Offsets, end: Offsets
    ) -> list[SourcePartition]:
        if any(key.broker in self._sources.silent for key, _ in _held_for(start, end)):
            self._sources.require_answers()
        queues = {**self._sources.queues, **self._promised(start, end)}
        ranges = batch_ranges(start, end, queues, positions)
        return batch_partitions(self._sources.opened, ranges, self._options)

    def _promised(self, start: Offsets, end: Offsets) -> dict[QueueKey, ChosenQueue]:
        """Return the queues of a micro-batch that are not chosen any more.

        It was planned before that. Its messages are in no other micro-batch.
        """
        sources = {source.broker_name: source for source in self._sources.opened}
        found: dict[QueueKey, ChosenQueue] = {}
        for key, _ in _held_for(start, end):
            if key not in self._sources.queues and key.broker in sources:
                source = sources[key.broker]
                with suppress(TopicNotFoundError):
                    found[key] = ChosenQueue(key, source, source.queue(key.topic, key.queue_id))
        return found


def _held_for(start: Offsets, end: Offsets) -> Iterator[tuple[QueueKey, Mark]]:
    """Yield the positions that a replica must hold to read a micro-batch."""
    for key, mark in end.items():
        begin = mark.begin
        if begin is None and key in start:
            begin = start[key].next
        if begin is not None and begin < mark.next:
            yield key, Mark(begin)
            yield key, mark
