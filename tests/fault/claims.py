"""What a writer was told to write and what it said was done, against what the store holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rmqstore_spark.reader.store import Store
from tests.fault.messages import read_numbers

__all__ = ["Claims", "Operation"]


@dataclass
class Operation:
    """A put, or the commit of a batch.

    Attributes:
        kind: "put" or "commit".
        first: number of its first message.
        count: of messages.
        done: whether the writer said so.
    """

    kind: str
    first: int
    count: int
    done: bool = False

    @property
    def numbers(self) -> range:
        """The messages' numbers."""
        return range(self.first, self.first + self.count)


@dataclass
class Claims:
    """All operations on one store, over the lives of all its writers."""

    operations: list[Operation] = field(default_factory=list)
    acknowledged: int = 0

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

    def forget_lost(self, path: Path) -> None:
        """Take what a power cut under ASYNC_FLUSH took as never done."""
        with Store.open(path) as store:
            found = {n for numbers in read_numbers(store).values() for n in numbers}
        for operation in self.operations:
            operation.done &= operation.first in found or not operation.count

    @property
    def next_number(self) -> int:
        """The number of the next message that nobody used."""
        return self.operations[-1].numbers.stop if self.operations else 0

    @property
    def unfinished_commit(self) -> Operation | None:
        """The commit that was begun last, if nobody knows whether it was done."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.kind == "commit" and not last.done else None

    def check(self, path: Path, *, lost_tail: bool = False) -> None:
        """Compare with what a store holds: nothing lost, nothing doubled, batches whole.

        Args:
            path: the store.
            lost_tail: the power was cut under ASYNC_FLUSH: the last puts may be gone.
        """
        with Store.open(path) as store:
            report = store.verify()
            assert report.ok, [str(problem) for problem in report.problems][:5]
            queues = read_numbers(store)
        found = Counter(number for numbers in queues.values() for number in numbers)
        doubled = [number for number, times in found.items() if times > 1]
        assert not doubled, f"doubled: {doubled[:10]}"
        for queue, numbers in queues.items():
            assert numbers == sorted(numbers), f"out of order in {queue}"
        tried: set[int] = set()
        lost_from: Operation | None = None
        for operation in self.operations:
            held = sum(number in found for number in operation.numbers)
            tried.update(operation.numbers)
            if operation.kind == "commit":
                assert held in (0, operation.count), f"part of a batch: {held} of {operation}"
            if lost_from is not None:
                assert held == 0, f"{operation} is there, and {lost_from} before it is not"
            if operation.done and held < operation.count:
                assert lost_tail, f"lost: {operation.count - held} of {operation}"
                assert operation.kind == "put", f"lost: {operation}"
                lost_from = operation
        assert set(found) <= tried
