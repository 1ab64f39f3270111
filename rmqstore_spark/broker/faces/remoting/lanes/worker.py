"""A thread that takes whatever has gathered while it was at work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from rmqstore_spark.broker.faces.remoting.lanes.fair_queue import FairQueue
from rmqstore_spark.remoting.codec.codes import OVERLOAD, ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request

_log = logging.getLogger(__name__)

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
        self._is_at_work = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_idle(self) -> bool:
        """Whether all jobs are done. True until the next `add`."""
        return not self._jobs and not self._is_at_work

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, jobs: Iterable[_J]) -> None:
        """Add jobs. From any thread."""
        with self._changed:
            for job in jobs:
                self._jobs.add(_owner(job), job)
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
        has_work: Callable[[], object] = lambda: self._jobs or self._is_closed  # noqa: E731
        while True:
            with self._changed:
                self._changed.wait_for(has_work, self._period)
                if self._is_closed and not self._jobs:
                    return
                self._is_at_work = True  # before they leave the queue: `is_idle` takes no lock
                jobs = self._jobs.take(self._most)
            try:
                self._handler.handle(jobs)
            except Exception:  # noqa: BLE001 - one job must not end all others
                _log.exception("%s failed.", self._thread.name)
            self._is_at_work = False


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
