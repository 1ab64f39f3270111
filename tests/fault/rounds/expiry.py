"""Segments that expire, by hand and by time, in a process that puts messages and is killed.

A reader beside it reads all queues again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import DataLossError, RmqStoreError, StoreNotFoundError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.fault.claims import Outcome, errors_in
from tests.fault.process import MovingClock, Told, say, work
from tests.fault.rounds.lives import Account
from tests.support.stores.storing import config, messages

_HOUR_MS: Final = 3_600_000
_KEPT_HOURS: Final = 24
_QUEUES: Final = 4
_TOPIC: Final = "T"
_WANTED: Final = ReadOptions(columns=("queueOffset", "body"))


def expiring(**settings: str) -> StoreConfig:
    """A store whose segments expire after a day, at any hour, and whatever the disk holds."""
    return config(
        fileReservedTime=_KEPT_HOURS,
        deleteWhen=";".join(map(str, range(24))),
        cleanResourceInterval=100,
        deleteCommitLogFilesInterval=0,
        deletePhysicFilesBatchMax=50,
        diskSpaceCleanForciblyRatio=1,
        **settings,
    )


def _body(number: int) -> bytes:
    return b"%012d" % number + b"." * (number * 7919 % 600)


class _Part(NamedTuple):
    """What a reader finds in a queue: its first offset, and the numbers from there on."""

    min_offset: int
    numbers: list[int]


class ExpiryAccount(Account):
    """Expected state, from the output of the processes."""

    module: ClassVar[str] = "tests.fault.rounds.expiry"
    places: ClassVar[tuple[str, ...]] = (
        *("expiry.before_remove", "expiry.after_remove", "expiry.after_segment"),
        *("expiry.after_queue_file", "expiry.after_index_file", "roll.after_create"),
    )
    longest_s: ClassVar[float] = 0.8

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[int, int] = {}
        self._by_hand = 0
        self._lowest: dict[int, int] = {}
        self._problems: list[str] = []

    def take(self, what: str, numbers: list[int]) -> None:
        """Messages: `begin FIRST COUNT`, `done FIRST COUNT TIME`; segments: `expire BEFORE`."""
        if what == "begin":
            self.number = sum(numbers)
        elif what == "done":
            first, count, time = numbers
            self._stored.update(dict.fromkeys(range(first, first + count), time))
            self.acknowledged += count
        elif what == "expire":
            self._by_hand = max(self._by_hand, numbers[0])

    @contextmanager
    def beside(self, store: Path) -> Iterator[None]:
        end = threading.Event()
        reading = threading.Thread(target=self._read_until, args=(end, store))
        reading.start()
        try:
            yield
        finally:
            end.set()
            reading.join()

    def _read_until(self, end: threading.Event, store: Path) -> None:
        while not end.wait(0.01):
            try:
                with Store.open(store) as reader:
                    for queue_id in range(_QUEUES):
                        self._read(reader, queue_id)
            except (StoreNotFoundError, DataLossError):
                continue  # not there yet, or removed while it was read
            except RmqStoreError as error:
                self._problems.append(f"a reader beside it: {error!r}")

    def _read(self, store: Store, queue_id: int) -> _Part:
        """Read a queue; note what is wrong in it."""
        if queue_id not in store.directory.topology.queues.get(_TOPIC, ()):
            return _Part(0, [])
        begin = store.queue(_TOPIC, queue_id).min_offset
        rows = [
            row
            for batch in store.read(_TOPIC, queue_id, begin, options=_WANTED)
            for row in batch.to_pylist()
        ]
        numbers = [int(row["body"][:12]) for row in rows]
        whole = [row["body"] == _body(n) for row, n in zip(rows, numbers, strict=True)]
        offsets = [row["queueOffset"] for row in rows]
        where = f"queue {queue_id} from {begin} on"
        if not all(whole):
            self._problems.append(f"{where}: {whole.count(False)} bodies are not what was put")
        if numbers != sorted(numbers) or any(n % _QUEUES != queue_id for n in numbers):
            self._problems.append(f"{where}: messages out of order, or of another queue")
        if offsets != list(range(begin, begin + len(rows))):
            self._problems.append(f"{where}: gaps between {len(rows)} messages")
        if begin < self._lowest.get(queue_id, 0):
            self._problems.append(f"{where}: it began at {self._lowest[queue_id]} before")
        self._lowest[queue_id] = max(begin, self._lowest.get(queue_id, 0))
        return _Part(begin, numbers)

    def compare(self, store: Path, settings: Sequence[str], *, lost_tail: bool) -> Outcome:
        """Open it, and look for each message that may not have expired."""
        with StoreWriter.open(store, expiring(), clock=lambda: self.now) as writer:
            writer.flush()
        with Store.open(store) as reader:
            self._problems += errors_in(reader)
            numbers = [n for queue in range(_QUEUES) for n in self._read(reader, queue).numbers]
        found = set(numbers)
        by_time = self.now - _KEPT_HOURS * _HOUR_MS
        gone = max(self._by_hand - 1, by_time)
        lost = [n for n, time in self._stored.items() if time > gone and n not in found]
        problems, self._problems = tuple(self._problems), []
        return Outcome(len(lost), len(numbers) - len(found), problems)


def put(store: StoreWriter, clock: MovingClock, numbers: Sequence[int]) -> None:
    """Put messages, and say so before and after."""
    say("begin", numbers[0], len(numbers))
    now = clock()
    batch = messages(
        [_body(number) for number in numbers],
        topic=_TOPIC,
        queue_id=[number % _QUEUES for number in numbers],
        properties=pa.array([b"KEYS\x01k%d" % number for number in numbers], pa.binary()),
    )
    result = store.put_batch(batch)
    assert result.ok, result
    say("done", numbers[0], len(numbers), now)


def _work(store: StoreWriter, told: Told) -> None:
    say("ready")
    number, clock = told.number, told.clock
    while True:
        count = told.drawn.choice((1, 4, 16))
        put(store, clock, range(number, number + count))
        number += count
        what = told.drawn.random()
        if what < 0.3:
            clock.jump(told.drawn.randint(0, _HOUR_MS))
        elif what < 0.35:
            # What is younger than half a day must stay.
            before = clock() - _KEPT_HOURS * _HOUR_MS // told.drawn.choice((1, 2))
            say("expire", before)
            store.expire(before)


if __name__ == "__main__":
    work(_work, expiring, {})
