"""A store with replicas: one of them is read, and another one when that is better.

The first one in the user's order is read that answers, holds all that the stream has read, and has
what any of them had a while ago. Plans are made on one replica at a time, so a micro-batch never
promises more than that one holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqstore_spark.client.contact import FirstContact, was_reached
from rmqstore_spark.client.patience import can_pass, rounds, told
from rmqstore_spark.datasource.options.connection import patience_s
from rmqstore_spark.datasource.options.table import PlaceOptions
from rmqstore_spark.datasource.sources.evidence import Evidence, held_queue
from rmqstore_spark.datasource.sources.failover import (
    FAILURES,
    ReplicatedPartition,
    no_replica,
)
from rmqstore_spark.datasource.sources.source import Clock, Needed
from rmqstore_spark.datasource.sources.store import StoreSource, StoreSpec, different_names
from rmqstore_spark.errors import ReplicaError
from rmqstore_spark.wire.endpoint import parse_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.options.table import QueueOptions
    from rmqstore_spark.reader.options import QueueRange, Split
    from rmqstore_spark.reader.plan import PlanLimits
    from rmqstore_spark.reader.store import Store

_log = logging.getLogger("rmqstore_spark")

_PROBE_S: Final = 2.0  # for a replica that is only asked for its name, or how far it reaches
_COOL_S: Final = 30.0
_LONGEST_COOL_S: Final = 300.0


def open_replicas(places: PlaceOptions, group: Sequence[StoreSpec], first: int) -> Replicas:
    """Open the first of some replicas that can be opened.

    Args:
        first: the number of the replica to try first.

    Raises:
        OptionError: the replicas report different broker names.
        ReplicaError: none can be opened.
    """
    specs = [
        spec.with_limits(places.replica_timeout_ms / 1000, replicas=len(group)) for spec in group
    ]
    connection = places.connection
    seconds = patience_s(connection)
    if connection is not None and connection.connect_s is not None:
        processes = [parse_endpoint(spec.url).address for spec in group]
        if not any(map(was_reached, processes)):  # none has ever answered
            seconds = min(seconds, connection.connect_s)
    with FirstContact(f"any of {' and '.join(spec.url for spec in group)}", seconds) as waiting:
        return _open_any(specs, first, seconds, waiting)


def _open_any(
    specs: Sequence[StoreSpec], first: int, seconds: float, waiting: FirstContact
) -> Replicas:
    failures: dict[str, Exception] = {}
    for _ in rounds(seconds):
        for number in range(len(specs)):
            spec = specs[(first + number) % len(specs)]
            try:
                store = spec.open_replica()
            except FAILURES as error:
                failures[spec.url] = error
                continue
            for url, failure in failures.items():
                _log.warning("The replica %s cannot be read now: %s", url, failure)
            if spec.broker_name is None:
                _check_reported(specs, spec, store.broker_name)
            named = tuple(replace(each, broker_name=store.broker_name) for each in specs)
            return Replicas(named[specs.index(spec)], store, named)
        if not any(map(can_pass, failures.values())):
            break
        waiting.because(told(failures))
    raise no_replica(specs[0].broker_name, failures)


def _check_reported(specs: Sequence[StoreSpec], opened: StoreSpec, name: str) -> None:
    """Refuse replicas that report another name: offsets would depend on who answers first."""
    names = {opened.url: name}
    for spec in specs:
        if spec is opened:
            continue
        try:
            with spec.with_limits(_PROBE_S).client() as client:
                names[spec.url] = client.open(()).broker_name
        except FAILURES:
            continue  # it is compared when another query finds it
    if len(set(names.values())) > 1:
        raise different_names(names)


class Replicas(StoreSource):
    """An open store, and its replicas."""

    _following: tuple[QueueOptions, float, Clock]

    def __init__(self, spec: StoreSpec, store: Store, specs: Sequence[StoreSpec]) -> None:
        super().__init__(spec, store)
        self._specs = specs
        self.replicas = len(specs)
        self._probes = _Probes(specs, time.monotonic)
        self._evidence: Evidence | None = None

    def close(self) -> None:
        super().close()
        self._probes.close()

    def plan(
        self, ranges: Sequence[QueueRange], limits: PlanLimits, options: Options
    ) -> Sequence[Split]:
        self.store.require_queues("A store with replicas", "Name one of them")
        return super().plan(ranges, limits, options) if self.has_queues else ()

    def partitions(
        self, plan: str, groups: Sequence[Sequence[Split]]
    ) -> Iterator[ReplicatedPartition]:
        # A replica whose log differs from what was planned is a fork.
        evidence = self._evidence = Evidence.of(self.store, groups)
        spec, specs = self.spec.reached, [one.reached for one in self._specs]
        return (
            ReplicatedPartition(plan, spec, group, specs, evidence.about(group)) for group in groups
        )

    def follow(self, chosen: QueueOptions, hurry_s: float, clock: Clock) -> None:
        super().follow(chosen, hurry_s, clock)
        self._following = chosen, hurry_s, clock
        self._probes = _Probes(self._specs, clock)

    def repair(self, needed: Needed) -> dict[str, Exception]:
        fault = self._fault(self.spec, self.store, needed)
        if fault is None:
            return {}
        failures = {self.url: fault}
        for spec in self._specs:
            if spec == self.spec:
                continue
            found = self._move(spec, needed)
            if found is None:
                _log.warning("Reading %s from now on, because of %s", spec.url, told(failures))
                return {}
            failures[spec.url] = found
        return failures

    def turn(self, origin: str, places: int) -> bool:
        urls = [spec.url for spec in self._specs]
        spec = self._specs[(urls.index(origin) + places) % len(urls)]
        return spec != self.spec and self._move(spec, ()) is None

    def prefer(self, needed: Needed) -> None:
        for better in self._probes.that_keep_up():
            if better == self.spec:
                return
            before = self.url
            if self._move(better, needed) is None:
                _log.warning("Reading %s from now on, instead of %s.", better.url, before)
                return
            self._probes.pass_over(better)

    def _fault(self, spec: StoreSpec, store: Store, needed: Needed) -> Exception | None:
        """Return why a replica cannot be read, or None if it can."""
        own = [(key, mark) for key, mark in needed if key.broker == store.broker_name]
        try:
            spec.check_answers()
            store.refresh()
            for key, mark in own:
                queue = held_queue(store, key.topic, key.queue_id, mark)
                if queue.min_offset > mark.next:
                    raise ReplicaError(
                        f"{store.path} begins {key} at {queue.min_offset}, and offset {mark.next} "
                        "is needed."
                    )
            held = {(key.topic, key.queue_id) for key, _ in own}
            evidence = self._evidence
            if evidence is not None and (not needed or evidence.queue in held):
                evidence.check(store, ())  # the queue may be that of a topic that was deleted
        except FAILURES as error:
            return error
        return None

    def _move(self, spec: StoreSpec, needed: Needed) -> Exception | None:
        """Read another replica, if it holds what is needed; return why it does not."""
        try:
            store = spec.open_replica()
        except FAILURES as error:
            return error
        new = StoreSource(spec, store)
        fault = self._fault(spec, store, needed)
        if fault is None:
            try:
                new.require_stream()
                new.follow(*self._following)
            except FAILURES as error:
                fault = error
        if fault is not None:
            _close(store)
            return fault
        _close(self.store)
        self._use(spec, store)
        self.watched = new.watched
        return None


class _Probes:
    """Looks from time to time how far the logs of some replicas reach."""

    def __init__(self, specs: Sequence[StoreSpec], clock: Clock) -> None:
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
