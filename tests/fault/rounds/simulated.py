"""A store in this process, on a disk whose power is cut at any call of the operating system.

Each life of the store is recorded once, and cut short many times: what each crash leaves is
recovered, compared with what the store had said by then, and sometimes lived on, so that recoveries
are cut short too.
"""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.fault.claims import Claims, Outcome, errors_in
from tests.fault.messages import TOPICS
from tests.fault.operations import Operations
from tests.fault.rounds.driver import Scene
from tests.fault.simulated.calls import Calls, Event, Said
from tests.fault.simulated.disk import FATES, Disk
from tests.fault.stores import settings, with_topics
from tests.support.stores.storing import Clock, until

_MEMORY: Final = Path("/dev/shm")
"""Where a flush costs nothing, if the machine has it."""
_LIVES_ON: Final = 0.15
_COUNTS: Final = (1, 3, 9, 25)
_OPERATIONS: Final = 12
_COMMITS: Final = 0.3
_EXPIRES: Final = 0.15
_FLUSHES: Final = 0.3
_WAITS: Final = 0.7
_AGE_MS: Final = 10_000
_PLACES: Final = ReadOptions(columns=("queueOffset", "physicalOffset", "body"))

_QUEUES: Final = 8
"""Of all topics: numbers with one remainder are in one queue."""

Queue = tuple[str, int]


@dataclass
class Promised:
    """What a store has said until some event.

    Attributes:
        claims: puts and commits.
        times: when each message was put, at the earliest.
        places: queue offset and physical offset of each message that was put.
        expired_before: a message that was stored before that may be gone.
    """

    claims: Claims = field(default_factory=Claims)
    times: dict[int, int] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    expired_before: int = 0

    def take(self, events: list[Event]) -> None:
        """Take what was said."""
        for event in events:
            if not isinstance(event, Said):
                continue
            what, *rest = " ".join(map(str, event.words)).split()
            if what == "time":
                first, count, now = map(int, rest)
                self.times.update(dict.fromkeys(range(first, first + count), now))
            elif what == "expire":
                self.expired_before = max(self.expired_before, int(rest[0]))
            elif what == "place":
                number, *place = map(int, rest)
                self.places[number] = (place[0], place[1])
            else:
                self.claims.take(what, rest)

    def compare(self, path: Path, *, lost_tail: bool) -> Outcome:
        """Compare with what a store holds."""
        with Store.open(path) as store:
            problems = errors_in(store)
            found = _read(store)
        queues = {queue: [number for number, *_ in rows] for queue, rows in found.items()}

        def expired(number: int) -> bool:
            return self.times[number] < self.expired_before

        if not lost_tail:
            problems += self._goes_back()
        outcome = self.claims.judge(queues, lost_tail=lost_tail, expired=expired)
        for queue, rows in found.items():
            problems += [
                f"{number} is at {place} of {queue}, and was said to be at {self.places[number]}"
                for number, *place in rows
                if self.places.get(number, tuple(place)) != tuple(place)
            ]
            offsets = [offset for _, offset, _ in rows]
            if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                problems.append(f"{queue} has gaps: {offsets}")
        return Outcome(outcome.lost, outcome.doubled, (*problems, *outcome.others))

    def _goes_back(self) -> list[str]:
        """Messages that were put later and have a lower offset in their queue."""
        last: dict[int, int] = {}
        found = []
        for number in sorted(self.places):
            offset, queue = self.places[number][0], number % _QUEUES
            if offset <= last.get(queue, -1):
                found.append(f"{number} has offset {offset}, and one before it {last[queue]}")
            last[queue] = offset
        return found


def _read(store: Store) -> dict[Queue, list[tuple[int, int, int]]]:
    """Return number, queue offset and physical offset of the messages of each queue."""
    return {
        (queue.topic, queue.queue_id): [
            (int(row["body"][:12]), row["queueOffset"], row["physicalOffset"])
            for batch in store.read(queue.topic, queue.queue_id, queue.min_offset, options=_PLACES)
            for row in batch.to_pylist()
        ]
        for queue in store.queues()
        if queue.topic in TOPICS
    }


@dataclass(kw_only=True)
class SimulatedCrashes(Scene):
    """Crashes of a store, each at one call of one of its lives.

    Attributes:
        flush: `flushDiskType`.
    """

    flush: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._promised = Promised()
        self._clock = Clock()
        self._events: list[Event] = []
        self._lives = self._acknowledged = 0
        self._place = self.folder
        if _MEMORY.is_dir():
            self._place = Path(tempfile.mkdtemp(dir=_MEMORY))
            self.ends.callback(shutil.rmtree, self._place)

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    def begin(self) -> None:
        self._root = self._place / "life0"
        self._root.mkdir()
        self._record()

    def round(self, number: int, seed: int) -> bool:
        chance = random.Random(seed)
        at, fate, draw = chance.randint(0, len(self._events)), chance.choice(FATES), chance.random()
        note = f"life {self._lives}, event {at} of {len(self._events)}: {fate}, drawn {draw}"
        if at < len(self._events):
            note += f", before {str(self._events[at])[:120]}"
        self.done = [*self.done[:1], note]
        disk = self._disk.copy()
        disk.do(self._events[:at])
        promised = copy.deepcopy(self._promised)
        promised.take(self._events[:at])
        left = self._place / "left"
        disk.crash(random.Random(draw), fate, left)
        try:
            with StoreWriter.open(left, self._config(), clock=self._clock):
                pass
            outcome = promised.compare(left, lost_tail=self.flush == "ASYNC_FLUSH")
        except (RmqStoreError, AssertionError) as error:
            outcome = Outcome(0, 0, (f"{type(error).__name__}: {error}",))
        self.tally.add(outcome)
        shutil.rmtree(left)
        if outcome != Outcome(0, 0, ()):
            kept = self.folder.parent / f"left-{number}"
            disk.crash(random.Random(draw), fate, kept)
            self.tally.others += (f"{note}; what the crash left: {kept}",)
        elif chance.random() < _LIVES_ON:
            self._lives += 1
            shutil.rmtree(self._root)
            self._root = self._place / f"life{self._lives}"
            disk.crash(random.Random(draw), fate, self._root)
            self._promised = promised
            self._record()
        return True

    def finish(self) -> Outcome:
        return Outcome(0, 0, ())

    # ---- a life ---------------------------------------------------------------------------------

    def _config(self) -> StoreConfig:
        return settings(flushDiskType=self.flush, flushIntervalCommitLog=20)

    def _record(self) -> None:
        """Let a store live, from what its folder has."""
        root = self._root
        self._disk = Disk(root)
        with Calls(str(root)) as calls:
            self._live(root, calls)
        self._events = calls.events
        self._check(root)
        promised = copy.deepcopy(self._promised)
        promised.take(self._events)
        self._acknowledged += promised.claims.acknowledged - self._promised.claims.acknowledged

    def _live(self, root: Path, calls: Calls) -> None:
        chance, claims = self.drawn, self._promised.claims
        with with_topics(root, self._config(), clock=self._clock) as store:
            operations = Operations(store, calls.say)
            if claims.unfinished_commit is not None:
                again = claims.unfinished_commit
                operations.commit(again.first, again.count)
            number = claims.next_number
            for _ in range(chance.randint(1, _OPERATIONS)):
                count = chance.choice(_COUNTS)
                self._clock.now += chance.randint(1, 1000)
                calls.say("time", number, count, self._clock.now)
                if chance.random() < _COMMITS:
                    operations.commit(number, count)
                else:
                    result = operations.put(number, count)
                    places = zip(result.queue_offset, result.physical_offset, strict=True)
                    for row, place in enumerate(places):
                        calls.say("place", number + row, *place)
                if self.flush == "ASYNC_FLUSH" and chance.random() < _FLUSHES:
                    store.flush()
                    calls.say("durable", number)
                if chance.random() < _EXPIRES:
                    self._expire(store, calls)
                number += count

    def _expire(self, store: StoreWriter, calls: Calls) -> None:
        """Let old segments go; now and then, do not wait until they have gone."""
        before = self._clock.now - self.drawn.randint(0, _AGE_MS)
        calls.say("expire", before)
        store.expire(before)
        if self.drawn.random() < _WAITS:
            until(lambda: not store.expirable(before).segments)

    def _check(self, root: Path) -> None:
        """What was recorded leads to the files that the life has left."""
        disk = self._disk.copy()
        disk.do(self._events)
        played = self._place / "played"
        disk.crash(random.Random(0), "killed", played)
        assert dict(_files(played)) == dict(_files(root)), "a call was not recorded"
        shutil.rmtree(played)


def _files(root: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(root.rglob("*")):
        yield str(path.relative_to(root)), path.read_bytes() if path.is_file() else None
