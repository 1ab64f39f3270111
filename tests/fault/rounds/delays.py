"""Delayed messages, which wait and are delivered in a process that is killed.

The number of a message decides how long it waits: a second, five seconds, or an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.reader import Store
from tests.fault.claims import Outcome, errors_in
from tests.fault.process import JUMPS_BACK_MS, MovingClock, Told, replace, say, work
from tests.fault.rounds.lives import PutAccount
from tests.support.processes.delaying import delayed, delayed_config, rows_of
from tests.support.stores.storing import until

_DELAYS_MS: Final = (1_000, 5_000, 3_600_000)
_JUMPS_MS: Final = (0, 0, 300, 1_000, 5_000, 900_000)
_QUEUES: Final = 4
_PATIENCE_S: Final = 120.0


class DelayAccount(PutAccount):
    """Expected state, from the output of the processes."""

    module: ClassVar[str] = "tests.fault.rounds.delays"
    places: ClassVar[tuple[str, ...]] = (
        *("delay.before_append", "delay.after_append", "put.after_write", "put.after_dispatch"),
        *("delayOffset.before_write", "delayOffset.after_backup", "recovery.after_queues"),
    )
    longest_s: ClassVar[float] = 1.8  # it begins to deliver after a second
    _tells_time: ClassVar[bool] = True

    def compare(self, store: Path, settings: Sequence[str], *, lost_tail: bool) -> Outcome:
        """Let all be delivered, and compare."""
        self.now += 2 * max(_DELAYS_MS)
        clock = MovingClock(self.now)
        with StoreWriter.open(store, _config(), clock=clock) as writer:
            writer.flush()
            until(lambda: _waiting(writer) == 0, _PATIENCE_S)
            writer.flush()
        self.now = clock() + 1_000
        with Store.open(store) as reader:
            others = errors_in(reader, delay_levels="1s 5s 1h")
        waited = {row["body"]: row["storeTimestamp"] for row in rows_of(store, SCHEDULE_TOPIC)}
        found = Counter[int]()
        for row in rows_of(store, "T"):
            number = int(row["body"])
            found[number] += 1
            late = row["storeTimestamp"] - waited[row["body"]]
            if self._tells_time and late < timedelta(milliseconds=_DELAYS_MS[number % 3]):
                others.append(f"{number} was delivered after {late}, before it was due")
            if row["queueId"] != number % _QUEUES:
                others.append(f"{number} is in queue {row['queueId']}")
        others += [f"{number} was never put" for number in found if number >= self.number]
        lost = self._put - found.keys()
        return Outcome(len(lost), sum(found.values()) - len(found), tuple(others))


class ClockBackAccount(DelayAccount):
    """The same with a clock that goes back, too, also while no process runs.

    storeTimestamps stand still meanwhile, so they do not tell how long a message has waited.
    """

    options: ClassVar[tuple[str, ...]] = ("--goes-back",)
    _tells_time: ClassVar[bool] = False


def _waiting(store: StoreWriter) -> int:
    """How many messages wait; -1 if the store has not looked yet."""
    stats = store.stats()
    found = stats["delayedWaiting"]
    has_looked = len(found) == len(_DELAYS_MS) or SCHEDULE_TOPIC not in stats["queues"]
    return sum(found.values()) if has_looked else -1


def _is_less(store: StoreWriter, before: int) -> bool:
    """Whether something was delivered; true if nothing waited."""
    return before <= 0 or _waiting(store) < before


def _work(store: StoreWriter, told: Told) -> None:
    say("ready")
    number, clock = told.number, told.clock
    while True:
        count = told.drawn.choice((1, 3, 20, 60))
        numbers = range(number, number + count)
        levels = [one % len(_DELAYS_MS) + 1 for one in numbers]
        batch = delayed(
            [b"%d" % one for one in numbers], levels, queue_id=[one % _QUEUES for one in numbers]
        )
        say("begin", number, count)
        result = store.put_batch(batch)
        assert result.ok, result
        say("done", number, count)
        number += count
        clock.jump(told.drawn.choice((*_JUMPS_MS, *JUMPS_BACK_MS) if told.goes_back else _JUMPS_MS))
        if told.drawn.random() < 0.3:
            before = _waiting(store)
            clock.jump(max(_DELAYS_MS) + clock.behind_ms)
            until(partial(_is_less, store, before))


def _forget_what_was_delivered() -> None:
    """A mutant: it looks for progress in the file only."""
    replace("rmqstore_spark.engine.delay.log_progress", "_sources", lambda _: np.empty(0, np.int64))


def _config(**settings: str) -> StoreConfig:
    return delayed_config(flushDelayOffsetInterval=100, **settings)


if __name__ == "__main__":
    work(_work, _config, {"forget": _forget_what_was_delivered})
