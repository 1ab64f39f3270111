"""Choose which replica of each store a stream's plans are made on.

The first one in the user's order is read that answers, holds all that the stream has read, and has
what any of them had a while ago. Plans are made on one replica at a time, so a micro-batch never
promises more than that one holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from rmqstore_spark.datasource.offsets import Mark, QueueKey
from rmqstore_spark.datasource.opening import no_replica, patience_s
from rmqstore_spark.datasource.options.table import PlaceOptions
from rmqstore_spark.datasource.partitions import AnyPartition, StorePartition
from rmqstore_spark.datasource.replicas import (
    FAILURES,
    Evidence,
    QueueEnd,
    can_pass,
    held_queue,
    told,
)
from rmqstore_spark.datasource.spec import AnySource, SourceStore, StoreSpec
from rmqstore_spark.datasource.stream.watch import Watch
from rmqstore_spark.errors import ReplicaError

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

__all__ = ["Needed", "Standby", "State"]

_log = logging.getLogger("rmqstore_spark")

Needed: TypeAlias = Sequence[tuple[QueueKey, Mark]]
"""Positions that a replica must hold: the offset, and what lies before it."""

_PROBE_S: Final = 2.0
_COOL_S: Final = 30.0
_LONGEST_COOL_S: Final = 300.0
_IDLE: Final = 50  # pause between two probes, as a multiple of what they took
_REMINDER_S: Final = 60.0


class State(Enum):
    """What `Standby.repair` found.

    FINE: each chosen replica holds what is needed. MOVED: another one was chosen. WAITING: none
    holds it now. LOST: none will.
    """

    FINE = 0
    MOVED = 1
    LOST = 2
    WAITING = 3


class Standby:
    """The stores of a stream, some of which have replicas.

    Args:
        places: says how long to wait for a replica.
        opened: the stores, each opened at the first replica that answered.
        watch: the queues of these stores.
        clock: returns seconds since any moment.

    Attributes:
        opened: the stores, each at the replica that is chosen now.
    """

    def __init__(
        self,
        places: PlaceOptions,
        opened: Sequence[AnySource],
        watch: Watch,
        clock: Callable[[], float],
    ) -> None:
        self.opened = list(opened)
        self._watch = watch
        self._clock = clock
        self._behind_s = places.replica_timeout_ms / 1000
        self._patience_s = patience_s(places.connection)
        self._evidence: dict[str, Evidence] = {}
        self._waiting_since: float | None = None
        self._reminded = -_REMINDER_S
        self._probes = {
            of.store.broker_name: _Probes(of.replicas, clock)
            for of in opened
            if isinstance(of, SourceStore) and of.replicas
        }
        self._probe_at = clock() + self._behind_s

    @property
    def has_replicas(self) -> bool:
        """Whether any store has replicas."""
        return bool(self._probes)

    def close(self) -> None:
        """Close the stores."""
        for of in self.opened:
            of.store.close()
        for probes in self._probes.values():
            probes.close()

    def saw(self, partitions: Iterable[AnyPartition]) -> None:
        """Remember what was planned: a replica whose log differs there is a fork."""
        for part in partitions:
            if isinstance(part, StorePartition) and part.evidence is not None:
                self._evidence[str(part.store.broker_name)] = part.evidence

    def works(self) -> None:
        """Take note that the chosen replicas have what is needed: nothing is waited for."""
        self._waiting_since = None

    def repair(self, needed: Needed) -> State:
        """Check the chosen replicas, and choose others for those that lack something.

        Raises:
            ReplicaError: no replica of a store answers, and it is over the time for that.
        """
        states = [self._repair(number, needed) for number in range(len(self.opened))]
        state = max(states, key=lambda each: each.value)
        if state is not State.WAITING:
            self.works()
        return state

    def _repair(self, number: int, needed: Needed) -> State:
        of = self.opened[number]
        if not isinstance(of, SourceStore) or not of.replicas:
            return State.FINE
        fault = self._fault(of.spec, of.store, needed)
        if fault is None:
            return State.FINE
        failures = {of.spec.url: fault}
        for spec in of.replicas:
            if spec == of.spec:
                continue
            found = self._move(number, of, spec, needed)
            if found is None:
                _log.warning("Reading %s from now on, because of %s", spec.url, told(failures))
                return State.MOVED
            failures[spec.url] = found
        return self._none_left(of, failures)

    def _none_left(self, of: SourceStore, failures: dict[str, Exception]) -> State:
        """Decide what it means that no replica of a store holds what is needed."""
        if not any(map(can_pass, failures.values())):
            return State.LOST
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        is_over = now - self._waiting_since >= self._patience_s
        answering = [isinstance(error, ReplicaError) for error in failures.values()]
        if is_over and all(answering):
            return State.LOST
        if is_over and not any(answering):
            lost = no_replica(of.store.broker_name, failures)
            lost.can_pass = False  # the time for that is over
            raise lost
        if now - self._reminded >= _REMINDER_S:
            self._reminded = now
            _log.warning("The stream waits for a replica that has caught up. %s", told(failures))
        return State.WAITING

    def _fault(self, spec: StoreSpec, store: Store, needed: Needed) -> Exception | None:
        """Return why a replica cannot be read, or None if it can."""
        broker = store.broker_name
        try:
            spec.check_answers()
            store.refresh()
            for key, mark in needed:
                if key.broker != broker:
                    continue
                end = QueueEnd(mark.next, mark.last_physical, mark.fingerprint)
                queue = held_queue(store, key.topic, key.queue_id, end)
                if queue.min_offset > mark.next:
                    raise ReplicaError(
                        f"{store.path} begins {key} at {queue.min_offset}, and offset {mark.next} "
                        "is needed."
                    )
            evidence = self._evidence.get(broker)
            held = {(key.topic, key.queue_id) for key, _ in needed if key.broker == broker}
            if evidence is not None and (not needed or evidence.queue in held):
                evidence.check(store, ())  # the queue may be that of a topic that was deleted
        except FAILURES as error:
            return error
        return None

    def _move(
        self, number: int, of: SourceStore, spec: StoreSpec, needed: Needed
    ) -> Exception | None:
        """Choose another replica, if it holds what is needed; return why it does not."""
        try:
            store = spec.open_replica()
        except FAILURES as error:
            return error
        fault = self._fault(spec, store, needed)
        if fault is None:
            try:
                store.require_queues("A stream")
                self._watch.replace(of.store, store)
            except FAILURES as error:
                fault = error
        if fault is not None:
            _close(store)
            return fault
        self.opened[number] = of._replace(spec=spec, store=store)
        _close(of.store)
        return None

    def turns(self) -> Iterator[None]:
        """Choose each replica of the stores in turn, and in the end those of the beginning again.

        Those that cannot be read are passed over. Yields nothing if no store has replicas.
        """
        chosen = list(self.opened)
        counts = [len(of.replicas) for of in chosen if isinstance(of, SourceStore)]
        for turn in range(max(counts, default=0)):
            if self._turn(chosen, turn):
                yield
        self._turn(chosen, 0)

    def _turn(self, chosen: Sequence[AnySource], turn: int) -> bool:
        """Choose the replicas so many places behind the given ones; return whether one is read."""
        is_new = turn == 0
        for number, of in enumerate(chosen):
            if isinstance(of, SourceStore) and of.replicas:
                spec = of.replicas[(of.replicas.index(of.spec) + turn) % len(of.replicas)]
                now = self.opened[number]
                if isinstance(now, SourceStore) and now.spec != spec:
                    is_new |= self._move(number, now, spec, ()) is None
        return is_new

    def prefer(self, needed: Needed) -> bool:
        """Continue at the first replica that keeps up, if it is time; return whether it did.

        A replica keeps up if it has what any had when they were looked at last.
        """
        now = self._clock()
        if now < self._probe_at:
            return False
        began = time.monotonic()
        moved = False
        for number, of in enumerate(self.opened):
            if not isinstance(of, SourceStore) or not of.replicas:
                continue
            probes = self._probes[of.store.broker_name]
            for better in probes.that_keep_up():
                if better == of.spec:
                    break
                if self._move(number, of, better, needed) is None:
                    _log.warning("Reading %s from now on, instead of %s.", better.url, of.spec.url)
                    moved = True
                    break
                probes.pass_over(better)
        took = time.monotonic() - began
        self._probe_at = self._clock() + max(self._behind_s, _IDLE * took)
        return moved


class _Probes:
    """Looks from time to time how far the logs of some replicas reach."""

    def __init__(self, specs: Sequence[StoreSpec], clock: Callable[[], float]) -> None:
        self._specs = specs
        self._clock = clock
        self._stores: dict[StoreSpec, Store] = {}
        self._next_look: dict[StoreSpec, float] = {}
        self._cool: dict[StoreSpec, float] = {}
        self._reach: dict[StoreSpec, int] = {}

    def that_keep_up(self) -> list[StoreSpec]:
        """Return the replicas that have what any had at the last call, in the user's order."""
        due = max(self._reach.values(), default=None)
        ends = {spec: self._end_of(spec) for spec in self._specs}
        self._reach = {spec: end for spec, end in ends.items() if end is not None}
        return [spec for spec, end in self._reach.items() if due is not None and end >= due]

    def _end_of(self, spec: StoreSpec) -> int | None:
        """Return where the newest record in a queue ends; None if the replica does not answer."""
        now = self._clock()
        if now < self._next_look.get(spec, now):
            return None
        try:
            if spec not in self._stores:
                self._stores[spec] = spec.with_limits(_PROBE_S).open_replica()
            store = self._stores[spec]
            spec.with_limits(_PROBE_S).check_answers()
            store.refresh()
            end = store.dispatched_end()
        except FAILURES:
            self.pass_over(spec)
            return None
        self._cool.pop(spec, None)
        return end

    def pass_over(self, spec: StoreSpec) -> None:
        """Leave out a replica that cannot be read: not even its end counts."""
        self._reach.pop(spec, None)
        if spec in self._stores:
            _close(self._stores.pop(spec))
        cool = self._cool[spec] = min(2 * self._cool.get(spec, _COOL_S / 2), _LONGEST_COOL_S)
        self._next_look[spec] = self._clock() + cool

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores.values():
            _close(store)


def _close(store: Store) -> None:
    with suppress(*FAILURES):
        store.close()
