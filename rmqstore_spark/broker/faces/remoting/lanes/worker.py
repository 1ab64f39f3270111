"""A thread that takes whatever has gathered while it was at work; connections take turns."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from rmqstore_spark.remoting.codec.codes import OVERLOAD, ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Jobs that wait: one of each owner in turn, and those of an owner in their order.

    Jobs of nobody (None) have their turn like those of an owner, and never make room for others.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._of: dict[Hashable, deque[_T]] = {}  # the owner whose turn it is comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, owner: Hashable, job: _T) -> None:
        """Add a job behind the others of its owner."""
        jobs = self._of.get(owner)
        if jobs is None:
            jobs = self._of[owner] = deque()
        jobs.append(job)
        self._count += 1

    def take(self, most: int) -> list[_T]:
        """Take the next jobs."""
        taken: list[_T] = []
        while self._of and len(taken) < most:
            owner = next(iter(self._of))
            jobs = self._of.pop(owner)
            count = 1 if self._of else min(len(jobs), most - len(taken))
            taken += [jobs.popleft() for _ in range(count)]
            if jobs:
                self._of[owner] = jobs
        self._count -= len(taken)
        return taken

    def take_from_longest(self, owner: Hashable) -> _T | None:
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

    def remove(self, owner: Hashable) -> Sequence[_T]:
        """Remove all jobs of an owner, and return them."""
        jobs = self._of.pop(owner, deque())
        self._count -= len(jobs)
        return jobs


_J = TypeVar("_J")
_J_contra = TypeVar("_J_contra", contravariant=True)

_MOST: Final = 1024
"""Most jobs that are taken at once, unless the owner of the worker wants fewer."""


class Handles(Protocol[_J_contra]):
    """Does jobs."""

    def handle(self, jobs: Sequence[_J_contra]) -> None:
        """Do some jobs; none if the time was over first."""


class Worker(Generic[_J]):
    """Hands jobs to a handler, in one thread, until it is closed.

    Connections take turns with their requests, however many one of them has sent.

    Args:
        name: of the thread.
        handler: does the jobs.
        period: seconds after which the handler is called even without jobs; None: it is not.
        most: most jobs that are taken at once.

    Attributes:
        is_idle: whether all jobs are done. True until the next `add`.
    """

    def __init__(
        self,
        name: str,
        handler: Handles[_J],
        period: float | None = None,
        most: int = _MOST,
    ) -> None:
        self._handler = handler
        self._period = period
        self._most = most
        self._changed = threading.Condition()
        self._jobs: FairQueue[_J] = FairQueue()
        self.is_idle = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, jobs: Iterable[_J]) -> None:
        """Add jobs. From any thread."""
        with self._changed:
            for job in jobs:
                self._jobs.add(_owner(job), job)
            self.is_idle = False
            self._changed.notify()

    def add_if_room(self, jobs: Iterable[_J], most: int) -> list[_J]:
        """Add requests as far as there is room. From any thread.

        Args:
            jobs: the requests.
            most: how many jobs may wait.

        Returns:
            The requests for which there is no room: of the connections that have most of them.
        """
        left = []
        with self._changed:
            for job in jobs:
                owner = _owner(job)
                if len(self._jobs) >= most:
                    other = self._jobs.take_from_longest(owner)
                    left.append(job if other is None else other)
                    if other is None:
                        continue
                self._jobs.add(owner, job)
            self.is_idle = False
            self._changed.notify()
        return left

    def remove(self, connection: RemotingConnection) -> Sequence[_J]:
        """Remove the requests of a connection, and return them. From any thread."""
        with self._changed:
            return self._jobs.remove(connection)

    def close(self) -> None:
        """Do the jobs that are left, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._period)
                if self._is_closed and not self._jobs:
                    return
                self.is_idle = False  # also when only the time is over
                jobs = self._jobs.take(self._most)
            try:
                self._handler.handle(jobs)
            except Exception:  # noqa: BLE001 - one job must not end all others
                _log.exception("%s failed.", self._thread.name)

    def _has_work(self) -> bool:
        self.is_idle = not self._jobs
        return bool(self._jobs) or self._is_closed


def take_requests(worker: Worker[Any], requests: Sequence[Request], most: int) -> Sequence[Request]:
    """Give requests that arrived together to a worker; see `dispatch.GroupHandler`.

    Args:
        worker: handles them.
        requests: the requests.
        most: jobs that may wait. Requests for which there is no room are answered SYSTEM_BUSY.

    Returns:
        Those that were refused: of these requests, or of other connections that have more.
    """
    refused = worker.add_if_room(requests, most)
    for request in refused:
        request.reply(request.command.answer(ResponseCode.SYSTEM_BUSY, OVERLOAD))
    return refused


def _owner(job: object) -> RemotingConnection | None:
    """Return the connection that waits for a job."""
    return job.connection if isinstance(job, Request) else None
