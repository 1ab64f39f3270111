"""The sources that a stream follows: their queues, and which of their replicas are read.

A broker that does not answer is left out of micro-batches, and asked again from time to time. Of a
store with replicas, another one is read when the first one fails, or when a better one keeps up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Final

from rmqstore_spark.client.patience import can_pass, told
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.connection import patience_s
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.datasource.sources.failover import no_replica
from rmqstore_spark.datasource.sources.source import ChosenQueue, Clock, Needed, Source
from rmqstore_spark.errors import ReplicaError, ServiceError

_log = logging.getLogger("rmqstore_spark")

_IDLE: Final = 50  # pause between two probes, as a multiple of what they took
_REMINDER_S: Final = 60.0


class State(Enum):
    """What `FollowedSources.repair` found.

    FINE: what is read holds what is needed. MOVED: another replica is read. WAITING: none holds it
    now. LOST: none will.
    """

    FINE = 0
    MOVED = 1
    LOST = 2
    WAITING = 3


class FollowedSources:
    """The open sources of a stream.

    Attributes:
        opened: the sources.
        queues: the queues that the stream reads, as of the last look, without those of sources that
            do not answer.
        silent: the names of these sources.
        relists: how often the folders of queues were listed again, by now: what was checked before
            may have been deleted and created again since.

    Raises:
        UnsupportedStoreError: a source has no queues.
    """

    def __init__(self, options: Options, clock: Clock) -> None:
        self._clock = clock
        self._behind_s = options.places.replica_timeout_ms / 1000
        self._patience_s = patience_s(options.places.connection)
        self._waiting_since: float | None = None
        self._reminded = -_REMINDER_S
        self.queues: dict[QueueKey, ChosenQueue] = {}
        self.silent: frozenset[str] = frozenset()
        self.relists = 0
        self.opened = open_sources(options, by_masters=True)
        try:
            for source in self.opened:
                source.require_stream()
            for source in self.opened:
                source.follow(options.queues, self._behind_s, clock)
        except BaseException:
            self.close()
            raise
        self.falls_silent = any(source.falls_silent for source in self.opened)
        self.has_replicas = any(source.replicas for source in self.opened)
        self._probe_at = clock() + self._behind_s
        self._collect()

    def close(self) -> None:
        """Close the sources."""
        for source in self.opened:
            source.close()

    def _collect(self) -> None:
        silent = [source for source in self.opened if source.watched.silence is not None]
        self.silent = frozenset(source.broker_name for source in silent)
        self.relists = sum(source.watched.relists for source in self.opened)
        self.queues = {
            key: chosen
            for source in self.opened
            if source not in silent
            for key, chosen in source.watched.queues.items()
        }

    def look(self) -> bool:
        """Look for changes; return whether `queues` differ or may reach further.

        Raises:
            ServiceError: no source has answered for the time that a query waits for one.
        """
        changed = [source.watched.look() for source in self.opened]
        if any(changed):
            self._collect()
        if len(self.silent) == len(self.opened):
            since = max(source.watched.silent_since for source in self.opened)
            if self._clock() - since >= self._patience_s:
                told_all = " ".join(str(source.watched.silence) for source in self.opened)
                raise ServiceError(told_all, can_pass=True)
        return any(changed)

    def find_silent(self) -> bool:
        """Look at the sources, after a failure; return whether another one does not answer."""
        before = self.silent
        for source in self.opened:
            source.watched.find_silence()
        self._collect()
        return not self.silent <= before

    def require_answers(self) -> None:
        """Wait for the sources that do not answer.

        Raises:
            ServiceError: one of them does not answer in time.
        """
        for source in self.opened:
            if source.watched.silence is not None:
                source.watched.check()
        self._collect()

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Give sources up soon in the context: others may have news."""
        with ExitStack() as limits:
            for source in self.opened:
                limits.enter_context(source.watched.hurried())
            yield

    def look_before(self, offsets: Mapping[QueueKey, int]) -> None:
        """Ask for the messages before some offsets together: they will be compared."""
        for source in self.opened:
            source.watched.look_before(offsets)

    def look_closely(self) -> None:
        """List and check everything, whatever it costs."""
        for source in self.opened:
            source.watched.check(relist=True)
        self._collect()

    def read_now(self) -> list[str]:
        """Return what is read of each source now, by URL."""
        return [source.url for source in self.opened]

    def works(self) -> None:
        """Take note that the chosen replicas have what is needed: nothing is waited for."""
        self._waiting_since = None

    def repair(self, needed: Needed) -> State:
        """Check what is read, and choose other replicas of sources that lack something.

        Raises:
            ReplicaError: no replica of a store answers, and it is over the time for that.
        """
        states = [self._repair(source, needed) for source in self.opened]
        state = max(states, key=lambda each: each.value)
        if state is not State.WAITING:
            self.works()
        return state

    def _repair(self, source: Source, needed: Needed) -> State:
        before = source.url
        failures = source.repair(needed)
        if failures:
            return self._none_left(source, failures)
        if source.url == before:
            return State.FINE
        self._collect()
        return State.MOVED

    def _none_left(self, source: Source, failures: dict[str, Exception]) -> State:
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
            lost = no_replica(source.broker_name, failures)
            lost.can_pass = False  # the time for that is over
            raise lost
        if now - self._reminded >= _REMINDER_S:
            self._reminded = now
            _log.warning("The stream waits for a replica that has caught up. %s", told(failures))
        return State.WAITING

    def turns(self) -> Iterator[None]:
        """Choose each replica of the stores in turn, and in the end those of the beginning again.

        Those that cannot be read are passed over. Yields nothing if no store has replicas.
        """
        chosen = self.read_now()
        for places in range(max(source.replicas for source in self.opened)):
            if self._turn(chosen, places):
                yield
        self._turn(chosen, 0)

    def _turn(self, chosen: Sequence[str], places: int) -> bool:
        """Choose the replicas so many places behind the given ones; return whether one is read."""
        moved = [
            source.turn(origin, places) for source, origin in zip(self.opened, chosen, strict=True)
        ]
        self._collect()
        return any(moved) or places == 0

    def prefer(self, needed: Needed) -> bool:
        """Continue at the first replica that keeps up, if it is time; return whether it did.

        A replica keeps up if it has what any had when they were looked at last.
        """
        if self._clock() < self._probe_at:
            return False
        began = time.monotonic()
        before = self.read_now()
        for source in self.opened:
            source.prefer(needed)
        self._collect()
        took = time.monotonic() - began
        self._probe_at = self._clock() + max(self._behind_s, _IDLE * took)
        return before != self.read_now()
