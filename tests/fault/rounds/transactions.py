"""Transactions that are put, ended and checked by a process that is killed.

The number of a message decides what becomes of it: it is committed, rolled back, or never ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.reader import Store, transactions
from tests.fault.claims import Outcome, errors_in
from tests.fault.process import Told, replace, say, work
from tests.fault.rounds.lives import PutAccount
from tests.support.processes.delaying import rows_of
from tests.support.processes.halving import GROUP, ends, half_config, put_halves

_SETTINGS: Final = {"transactionTimeOut": 0, "transactionCheckMax": 12}
_GIVEN_UP: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
_AT_ONCE: Final = 100_000


def _is_commit(number: int) -> bool | None:
    """What becomes of a message: True for a commit, False for rolling back, None for neither."""
    return (True, False, None)[number % 3]


class TransactionAccount(PutAccount):
    """Expected state, from the output of the processes."""

    module: ClassVar[str] = "tests.fault.rounds.transactions"
    places: ClassVar[tuple[str, ...]] = (
        *("transactions.before_half", "transactions.before_end", "transactions.after_end"),
        *("transactionChecks.before_write", "transactionChecks.after_backup"),
        *("put.after_write", "put.after_dispatch", "roll.after_create", "recovery.after_queues"),
    )
    longest_s: ClassVar[float] = 0.8
    is_timed: ClassVar[bool] = False

    def compare(self, store: Path, settings: Sequence[str], *, lost_tail: bool) -> Outcome:
        """End what waits, as its producers would, and compare."""
        with StoreWriter.open(store, _config()) as writer:
            halves = {
                int(one.key[2:]): HalfId(one.place.queue_offset, one.place.physical_offset)
                for one in writer.transactions.waiting()
            }
            _end(writer, halves, list(halves))
            writer.flush()
        with Store.open(store) as reader:
            others = errors_in(reader)
        found = Counter(int(row["body"]) for row in rows_of(store, "T"))
        held = halves.keys() | {int(row["body"]) for row in rows_of(store, _GIVEN_UP)}
        others += [
            f"{number} is visible, and was not to be committed"
            for number in found
            if not _is_commit(number)
        ]
        expected = {number: found if _is_commit(number) else held for number in self._put}
        lost = [
            number
            for number, where in expected.items()
            # What was rolled back leaves nothing behind that could be missed.
            if _is_commit(number) is not False and number not in where
        ]
        return Outcome(len(lost), sum(found.values()) - len(found), tuple(others))


def _end(store: StoreWriter, halves: dict[int, HalfId], numbers: Sequence[int]) -> None:
    """End those transactions that have an outcome."""
    for outcome, status in ((True, "COMMITTED"), (False, "ROLLED_BACK")):
        chosen = [number for number in numbers if _is_commit(number) is outcome]
        if chosen:
            done = ends(store, [halves[number] for number in chosen], is_commit=outcome)
            assert done == [status] * len(chosen), done


def _answer_checks(store: StoreWriter) -> list[int]:
    """Check, and end those that are asked for and have an outcome; returns these."""
    store.transactions.check()
    halves = {
        int(one.key[2:]): HalfId(one.place.queue_offset, one.place.physical_offset)
        for one in store.transactions.take_asked(GROUP, _AT_ONCE)
    }
    _end(store, halves, list(halves))
    return [number for number in halves if _is_commit(number) is not None]


def _work(store: StoreWriter, told: Told) -> None:
    say("ready")
    number, halves, ended = told.number, dict[int, HalfId](), list[int]()
    while True:
        what = told.drawn.choice(("put", "put", "end", "check", "again"))
        open_ones = [one for one in halves if _is_commit(one) is not None and one not in ended]
        if what == "put":
            count = told.drawn.choice((1, 3, 20))
            numbers = range(number, number + count)
            say("begin", number, count)
            queues = [one % 4 for one in numbers]
            made = put_halves(store, [b"%d" % one for one in numbers], queue_id=queues)
            say("done", number, count)
            halves.update(zip(numbers, made, strict=True))
            number += count
        elif what == "end" and open_ones:
            # The others are left to a check, or to the next process.
            chosen = told.drawn.sample(open_ones, (len(open_ones) + 1) // 2)
            _end(store, halves, chosen)
            ended += chosen
        elif what == "check":
            ended += [one for one in _answer_checks(store) if one in halves]
        elif what == "again" and ended:
            again = [halves[one] for one in told.drawn.sample(ended, min(len(ended), 5))]
            is_commit = told.drawn.random() < 0.5
            done = ends(store, again, is_commit=is_commit)
            assert done == ["ENDED_BEFORE"] * len(again), done


def _forget_what_ended() -> None:
    """A mutant: after a start, what has ended waits again."""
    waiting = transactions._waiting
    replace(transactions.__name__, "_waiting", lambda halves, _: waiting(halves, {}))
    replace("rmqstore_spark.engine.transactions.progress", "_committed", lambda *_: [])


def _config(**settings: str) -> StoreConfig:
    return half_config(**_SETTINGS, **settings)


if __name__ == "__main__":
    work(_work, _config, {"forget": _forget_what_ended})
