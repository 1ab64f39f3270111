"""What a writer was told to write and what it said was done, against what the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmqstore_spark.layout.record.delayed import DELAY_LEVELS
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.messages import read_numbers

CLIENT: Final = 1_000_000_000
"""So many numbers of messages a client has, if there are several: the n-th from n times that on."""


@dataclass
class Operation:
    """A put, or the commit of a batch.

    Attributes:
        kind: "put", "commit", or "stage" for what is staged and never committed.
        first: number of its first message.
        count: of messages.
        done: whether the writer said so.
        durable: whether it said that the operation is on disk.
    """

    kind: str
    first: int
    count: int
    done: bool = False
    durable: bool = False

    @property
    def numbers(self) -> range:
        """The messages' numbers."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Outcome:
    """How a store differs from what was claimed of it.

    Attributes:
        lost: messages that were acknowledged and are not there.
        doubled: messages that are there more than once.
        others: what else is wrong, a sentence each.
    """

    lost: int
    doubled: int
    others: tuple[str, ...]

    def require_none(self) -> None:
        """Fail unless nothing is wrong."""
        assert not self.lost, f"lost: {self.lost} messages"
        assert not self.doubled, f"doubled: {self.doubled} messages"
        assert not self.others, "; ".join(self.others[:5])


@dataclass
class Claims:
    """All operations on one store, over the lives of all its writers, or those of one client.

    Attributes:
        first: number of the first message.
        operations: what was begun.
        acknowledged: messages.
    """

    first: int = 0
    operations: list[Operation] = field(default_factory=list)
    acknowledged: int = 0

    def take(self, what: str, words: Sequence[str]) -> None:
        """Note a line of a writer: `begin KIND FIRST COUNT`, `done KIND FIRST`, `durable FIRST`."""
        if what == "begin":
            self.begin(words[0], int(words[1]), int(words[2]))
        elif what == "done":
            self.done(words[0], int(words[1]))
        else:
            self.durable(int(words[0]))

    def begin(self, kind: str, first: int, count: int) -> None:
        """The writer began; a commit that is tried again is the same operation."""
        last = self.operations[-1] if self.operations else None
        if last is not None and (last.kind, last.first) == (kind, first):
            assert last.count == count
            return
        self.operations.append(Operation(kind, first, count))

    def done(self, kind: str, first: int) -> None:
        """The writer said that it is done."""
        last = self.operations[-1]
        assert (last.kind, last.first) == (kind, first)
        last.done = True
        self.acknowledged += last.count

    def durable(self, first: int) -> None:
        """The writer said that all is on disk up to the operation with this first number."""
        for operation in reversed(self.operations):
            if operation.durable:
                return
            operation.durable = operation.first <= first

    @property
    def next_number(self) -> int:
        """The number of the next message that nobody used."""
        return self.operations[-1].numbers.stop if self.operations else self.first

    @property
    def unfinished_commit(self) -> Operation | None:
        """The commit that was begun last, if nobody knows whether it was done."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.kind == "commit" and not last.done else None

    def check(self, path: Path, *, lost_tail: bool = False, late_puts: bool = False) -> None:
        """Compare with what a store holds: nothing lost, nothing doubled, batches whole.

        Args:
            path: the store.
            lost_tail: the power was cut under ASYNC_FLUSH: puts that were not on disk yet may be
                gone, and count as never done from now on.
            late_puts: the writer went on without the answers to some puts: the store, which lives,
                may have stored these after later ones.
        """
        self.compare(path, lost_tail=lost_tail, late_puts=late_puts).require_none()

    def compare(self, path: Path, *, lost_tail: bool = False, late_puts: bool = False) -> Outcome:
        """As `check`, but gives what is wrong."""
        problems, queues = _read(path)
        outcome = self.judge(queues, lost_tail=lost_tail, late_puts=late_puts)
        return Outcome(outcome.lost, outcome.doubled, (*problems, *outcome.others))

    def judge(
        self,
        queues: dict[tuple[str, int], list[int]],
        *,
        lost_tail: bool = False,
        late_puts: bool = False,
        expired: Callable[[int], bool] = lambda _: False,
    ) -> Outcome:
        """Compare with the numbers that the queues hold.

        Args:
            queues: the numbers.
            lost_tail, late_puts: see `check`.
            expired: whether a message may have been removed.
        """
        found = Counter(number for numbers in queues.values() for number in numbers)
        late = {
            number
            for operation in self.operations
            if late_puts and operation.kind == "put" and not operation.done
            for number in operation.numbers
        }
        others = []
        for queue, numbers in queues.items():
            ordered = [number for number in numbers if number not in late]
            if ordered != sorted(ordered):
                others.append(f"{queue} is out of order")
        tried = {number for operation in self.operations for number in operation.numbers}
        others += [f"{number} was never written" for number in set(found) - tried]
        lost = 0
        is_tail = lost_tail
        for operation in reversed(self.operations):
            wanted = [number for number in operation.numbers if not expired(number)]
            held = sum(number in found for number in wanted)
            if operation.kind == "commit" and 0 < held < len(wanted):
                others.append(f"{held} messages of a batch: {operation}")
            if operation.kind == "stage" and held:
                others.append(f"{held} messages of a batch that was not committed: {operation}")
            is_kept = operation.durable or (operation.done and operation.kind == "commit")
            # The last puts, back to the last operation that is whole or on disk, were never done.
            is_tail &= not is_kept and (held < len(wanted) or not wanted)
            if is_tail:
                operation.done = False
            lost += len(wanted) - held if operation.done else 0
        return Outcome(lost, sum(times - 1 for times in found.values()), tuple(others))


def compare_all(path: Path, clients: Sequence[Claims], *archives: Path) -> Outcome:
    """Compare what several clients were told, each with numbers of its own, with a store.

    Args:
        path: the store.
        clients: their claims, by the place of their numbers.
        archives: that belong to the store.
    """
    problems, queues = _read(path, *archives)
    lost = doubled = 0
    for number, claims in enumerate(clients):
        outcome = claims.judge(
            {queue: [n for n in found if n // CLIENT == number] for queue, found in queues.items()}
        )
        lost, doubled = lost + outcome.lost, doubled + outcome.doubled
        problems += outcome.others
    strays = {n for found in queues.values() for n in found if n // CLIENT >= len(clients)}
    return Outcome(lost, doubled, (*problems, *(f"{n} was never written" for n in strays)))


def _read(path: Path, *archives: Path) -> tuple[list[str], dict[tuple[str, int], list[int]]]:
    """What is wrong with a store, and the numbers that its queues hold."""
    with Store.open(path, archives=list(map(str, archives))) as store:
        return errors_in(store), read_numbers(store)


def errors_in(store: Store, delay_levels: str = DELAY_LEVELS) -> list[str]:
    """What `rmqstore verify` finds wrong with a store."""
    problems = verify(store, delay_levels=delay_levels).problems
    return [str(one) for one in problems if one.severity == "error"]
