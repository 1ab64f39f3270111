"""Track which queues of a broker a stream reads, and how far they reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmqstore_spark.client.brokers.broker import QueueName
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.parsing import Options
from rmqstore_spark.datasource.pulled.store import PulledStore
from rmqstore_spark.datasource.stores import ChosenQueue, chosen_names

__all__ = ["PulledWatch"]

_LOOK: Final = 0.1
_TOPICS: Final = 10.0
_BUSY: Final = 20
"""The wait between two looks, as a multiple of what one takes: a twentieth of a core."""


class PulledWatch:
    """The queues of one broker.

    Attributes:
        queues: the queues that the stream reads.
    """

    def __init__(self, options: Options, store: PulledStore, clock: Callable[[], float]) -> None:
        self._options = options
        self._store = store
        self._clock = clock
        self.queues: dict[QueueKey, ChosenQueue] = {}
        self._names: list[QueueName] = []
        self._topics_at = self._look_at = clock()
        self.check()

    def look(self) -> bool:
        """Ask the broker, if it is time; return whether anything changed."""
        now = self._clock()
        if now < self._look_at:
            return False
        changed = now >= self._topics_at and self._find_names()
        changed |= self._store.look(self._names)
        if changed:
            self._collect()
        took = self._clock() - now
        self._look_at = self._clock() + max(_LOOK, _BUSY * took)
        return changed

    def check(self, *, relist: bool = False) -> bool:
        """Ask for all topics and queues; return whether anything changed."""
        del relist  # there are no folders to list
        changed = self._find_names()
        changed |= self._store.look(self._names)
        if changed:
            self._collect()
        return changed

    def _find_names(self) -> bool:
        """List topics and queues; return whether other queues are there than before."""
        began = self._clock()
        self._store.refresh()
        names = chosen_names(self._options, self._store)
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
