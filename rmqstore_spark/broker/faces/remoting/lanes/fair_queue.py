"""Jobs of several owners, of which each has its turn, however many jobs another one has."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

_J = TypeVar("_J")


class FairQueue(Generic[_J]):
    """Jobs that wait: one of each owner in turn, and those of an owner in their order.

    Jobs of nobody (None) have their turn like those of an owner, and never make room for others.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._of: dict[Hashable, deque[_J]] = {}  # the owner whose turn it is comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, owner: Hashable, job: _J) -> None:
        """Add a job behind the others of its owner."""
        jobs = self._of.get(owner)
        if jobs is None:
            jobs = self._of[owner] = deque()
        jobs.append(job)
        self._count += 1

    def take(self, most: int) -> list[_J]:
        """Take the next jobs."""
        taken: list[_J] = []
        while self._of and len(taken) < most:
            owner = next(iter(self._of))
            jobs = self._of.pop(owner)
            count = 1 if self._of else min(len(jobs), most - len(taken))
            taken += [jobs.popleft() for _ in range(count)]
            if jobs:
                self._of[owner] = jobs
        self._count -= len(taken)
        return taken

    def take_from_longest(self, owner: Hashable) -> _J | None:
        """Take the newest job of the owner with most jobs, to make room for another owner.

        Returns:
            The job; None if the other owner has its share already (as many as there are on
            average), or nobody has more than one job more.
        """
        own = len(self._of.get(owner, ()))
        if (own + 1) * len(self._of) > self._count:  # it has its share
            return None
        owned = (jobs for of, jobs in self._of.items() if of is not None)
        jobs = max(owned, key=len, default=deque())
        if len(jobs) - 1 <= own:
            return None
        self._count -= 1
        return jobs.pop()

    def remove(self, owner: Hashable) -> Sequence[_J]:
        """Remove all jobs of an owner, and return them."""
        jobs = self._of.pop(owner, deque())
        self._count -= len(jobs)
        return jobs
