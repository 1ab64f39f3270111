"""Find the stores of a checkpoint among those of the query, whatever they are called now.

A store is the same if it holds the record before a position: its log is what its positions are
about. It has also an id, which moves with its folder and is told by its endpoint, and a name. A
copy has the id of its original, and a follower's store an id of its own, so the id alone proves
nothing. In this order, each store of the checkpoint gets the store that

1. has its name and its id;
2. has its name, and holds the records before its positions;
3. has its id, and does not hold other records there;
4. holds the records before its positions;
5. has its name.

Whether a store holds the right records is checked for each queue afterwards, in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import Mark, Offsets, QueueKey, StoresOf
from rmqstore_spark.datasource.sources.source import ChosenQueue, Source
from rmqstore_spark.datasource.stream.catchup import before_all, is_another
from rmqstore_spark.errors import OptionError, RmqStoreError

_log = logging.getLogger("rmqstore_spark")

_COMPARED: Final = 32
"""Positions of a store that are compared: one that agrees is enough."""


@dataclass(frozen=True)
class StorePlaces:
    """Where the stores of a checkpoint are.

    Args:
        names: the name now of each store that was found, by its name in the checkpoint.
        missing: the names of the others.
    """

    names: Mapping[str, str]
    missing: frozenset[str]


class _Agreement(NamedTuple):
    """How many positions of a checkpoint a store agrees with, and how many it contradicts."""

    same: int
    other: int


def ids_of(opened: Iterable[Source]) -> dict[str, str]:
    """Return the ids of the sources that have one, by broker name."""
    return {source.broker_name: known for source in opened if (known := source.store_id)}


def renamed(offsets: Offsets, names: Mapping[str, str]) -> Offsets:
    """Return offsets under the names that their stores have now."""
    if all(name == now for name, now in names.items()):
        return offsets
    return {
        key._replace(broker=names.get(key.broker, key.broker)): mark
        for key, mark in offsets.items()
    }


def find_stores(
    offsets: Offsets, known: StoresOf, opened: Sequence[Source], ids: Mapping[str, str]
) -> StorePlaces:
    """Find the stores of a checkpoint among those of a query.

    Args:
        offsets, known: the checkpoint's positions and stores.
        opened: the stores of the query.
        ids: their ids, by name.

    Raises:
        OptionError: several stores can be the same one of the checkpoint, or the other way round.
    """
    stores = {source.broker_name: source for source in opened}
    return _Search(offsets, known, stores, ids).run()


class _Search:
    def __init__(
        self,
        offsets: Offsets,
        known: StoresOf,
        stores: Mapping[str, Source],
        ids: Mapping[str, str],
    ) -> None:
        self._known = known
        self._stores = stores
        self._ids = ids
        self._positions: dict[str, list[tuple[QueueKey, Mark]]] = {}
        for key, mark in offsets.items():
            self._positions.setdefault(key.broker, []).append((key, mark))
        self._left = list(self._positions)
        self._names: dict[str, str] = {}
        self._agreements: dict[tuple[str, str], _Agreement] = {}

    def run(self) -> StorePlaces:
        """Go through the rules."""
        self._take({name: name for name in self._left if self._has_id(name, name)})
        for name in list(self._left):
            if name in self._free and self._agrees(name, name):
                self._take({name: name})
        for rule in (self._has_id_and_agrees, self._holds_records):
            self._take(self._only_ones(rule))
        self._take({name: name for name in self._left if name in self._free})
        for name, now in self._names.items():
            if name != now:
                _log.info("The store %s of the checkpoint is called %s now.", name, now)
        return StorePlaces(self._names, frozenset(self._left))

    @property
    def _free(self) -> set[str]:
        return self._stores.keys() - set(self._names.values())

    def _take(self, found: Mapping[str, str]) -> None:
        self._names.update(found)
        self._left = [name for name in self._left if name not in found]

    def _has_id(self, name: str, now: str) -> bool:
        wanted = self._known.ids.get(name)
        return wanted is not None and wanted == self._ids.get(now)

    def _agrees(self, name: str, now: str) -> bool:
        """Return whether a store of the same name needs no closer look."""
        found = self._agreement(name, now)
        return found.same > 0 and not found.other

    def _has_id_and_agrees(self, name: str, now: str) -> bool:
        if not self._has_id(name, now):
            return False
        found = self._agreement(name, now)
        return found.same > 0 or not found.other

    def _holds_records(self, name: str, now: str) -> bool:
        return self._agreement(name, now).same > 0

    def _only_ones(self, rule: Callable[[str, str], bool]) -> dict[str, str]:
        """Return the pairs of which a rule holds, if it is one store on either side."""
        free = sorted(self._free)
        found: dict[str, str] = {}
        for name in self._left:
            nows = self._best(name, [now for now in free if rule(name, now)])
            names = [other for other, now in found.items() if now in nows]
            if len(nows) > 1 or names:
                raise _ambiguous([*names, name], nows)
            if nows:
                found[name] = nows[0]
        return found

    def _best(self, name: str, nows: Sequence[str]) -> list[str]:
        """Return those of some stores that contradict no position, or all."""
        return [now for now in nows if not self._agreement(name, now).other] or list(nows)

    def _agreement(self, name: str, now: str) -> _Agreement:
        found = self._agreements.get((name, now))
        if found is None:
            found = _compared(self._positions[name], self._stores[now])
            self._agreements[name, now] = found
        return found


def _compared(positions: Iterable[tuple[QueueKey, Mark]], source: Source) -> _Agreement:
    """Compare the newest positions of a checkpoint that a record can be compared at."""
    telling = [one for one in positions if one[1].fingerprint]
    telling.sort(key=lambda one: one[1].last_physical, reverse=True)
    queues: dict[QueueKey, ChosenQueue] = {}
    marks: Offsets = {}
    other = 0
    for key, mark in telling[:_COMPARED]:
        with suppress(RmqStoreError):  # without the queue, or with a damaged one, nothing is known
            queue = source.queue(key.topic, key.queue_id)
            if queue.max_offset < mark.next:
                other += 1
                continue
            queues[key] = ChosenQueue(key, source, queue)
            marks[key] = mark
    before = before_all({key: mark.next for key, mark in marks.items()}, queues)
    same = 0
    for key, mark in marks.items():
        if is_another(mark, before[key]):
            other += 1
        elif before[key].fingerprint:
            same += 1
    return _Agreement(same, other)


def _ambiguous(names: Sequence[str], nows: Sequence[str]) -> OptionError:
    return OptionError(
        f"The checkpoint holds offsets of {some(names)}, and {some(nows)} hold the same messages: "
        "they are copies of each other. Set option brokerNames, so that each store has the name "
        "that it has in the checkpoint, or read one of them only."
    )
