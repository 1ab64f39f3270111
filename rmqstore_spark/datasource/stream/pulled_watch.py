"""Track which queues of a broker a stream reads, and how far they reach."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from rmqstore_spark.client.brokers.broker import QueueName
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.datasource.pulled.store import PulledStore
from rmqstore_spark.datasource.stores import ChosenQueue, chosen_names
from rmqstore_spark.errors import ServiceError

__all__ = ["PulledWatch"]

_log = logging.getLogger("rmqstore_spark")

_LOOK: Final = 0.1
_TOPICS: Final = 10.0
_ROUTES: Final = 30.0
"""How often RocketMQ's clients ask where brokers are."""
_BUSY: Final = 20
"""The wait between two looks, as a multiple of what one takes: a twentieth of a core."""
_SILENT: Final = 1.0
"""Seconds at least between two tries at a broker that does not answer."""


class PulledWatch:
    """The queues of one broker.

    Args:
        chosen: the queues that the stream reads.
        store: the broker.
        hurry_s: how long the broker may take while others may have news.
        clock: returns seconds since any moment.

    Attributes:
        queues: the queues that the stream reads.
        silence: why the broker does not answer; None if it does.
        silent_since: since when, by the clock.
    """

    def __init__(
        self,
        chosen: QueueOptions,
        store: PulledStore,
        hurry_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._chosen = chosen
        self._hurry_s = hurry_s
        self._store = store
        self._clock = clock
        self.queues: dict[QueueKey, ChosenQueue] = {}
        self.silence: ServiceError | None = None
        self.silent_since = 0.0
        self._names: list[QueueName] = []
        self._topics_at = self._look_at = clock()
        self._routes_at = clock() + _ROUTES
        self.check()

    def look_now(self) -> bool:
        """Ask the broker, whenever it was asked last; return whether anything changed."""
        self._look_at = self._clock()
        return self.look()

    def hurried(self) -> AbstractContextManager[None]:
        """Give the broker up soon in the context."""
        return self._store.servers.limited_to(self._hurry_s, tries_again=self.silence is None)

    def look_before(self, offsets: Mapping[QueueName, int]) -> None:
        """Ask for the messages before some offsets together."""
        self._store.look_before(offsets)

    def look(self) -> bool:
        """Ask the broker, if it is time; return whether anything changed.

        A broker that does not answer is not waited for long: others may have news. It is asked
        again from time to time.
        """
        now = self._clock()
        if now < self._look_at:
            return False
        try:
            with self.hurried():
                if now >= self._routes_at:
                    self._store.servers.find_again()
                    self._routes_at = now + _ROUTES
                changed = now >= self._topics_at and self._find_names()
                changed |= self._store.look(self._names)
        except ServiceError as error:
            if not error.can_pass:
                raise
            return self._fall_silent(error, self._clock() - now)
        changed |= self._answered()
        if changed:
            self._collect()
        took = self._clock() - now
        self._look_at = self._clock() + max(_LOOK, _BUSY * took)
        return changed

    def check(self, *, relist: bool = False) -> bool:
        """Ask for all topics and queues; return whether anything changed.

        Raises:
            ServiceError: the broker does not answer.
        """
        del relist  # there are no folders to list
        changed = self._find_names()
        changed |= self._store.look(self._names)
        changed |= self._answered()
        if changed:
            self._collect()
        return changed

    def _fall_silent(self, error: ServiceError, took: float) -> bool:
        """Take note that the broker does not answer; return whether it did before."""
        is_new = self.silence is None
        now = self._clock()
        # The first time it was tried again and again, and now once each time.
        pause = _SILENT if is_new else max(_SILENT, min(_BUSY * took, _ROUTES))
        self._look_at = now + pause
        if is_new:
            self.silent_since = now
            _log.warning(
                "The stream continues without new messages of a broker, until it answers again. %s",
                error,
            )
        self.silence = error
        return is_new

    def _answered(self) -> bool:
        """Take note that the broker answers; return whether it did not before."""
        was_silent = self.silence is not None
        if was_silent:
            _log.warning("%s answers again.", self._store.path)
        self.silence = None
        return was_silent

    def _find_names(self) -> bool:
        """List topics and queues; return whether other queues are there than before."""
        began = self._clock()
        self._store.refresh()
        names = chosen_names(self._chosen, self._store)
        self._topics_at = self._clock() + max(_TOPICS, _BUSY * (self._clock() - began))
        changed = names != self._names
        self._names = names
        return changed

    def _collect(self) -> None:
        broker = self._store.broker_name
        self.queues = {}
        for name in self._store.used(self._names):
            key = QueueKey(broker, *name)
            self.queues[key] = ChosenQueue(key, self._store, self._store.queue(*name))
