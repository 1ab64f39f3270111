"""A thread for the handlers of single requests: one after the other, and only so many wait.

Connections take turns, however many requests one of them has sent. Use it in the thread of the
event loop. `SavedReports` answers consumers' reports of offsets when these are on disk: one write
for all that gathered. RocketMQ's clients report one-way, and wait for nothing; who waits for an
answer can rely on it. (Upstream: ConsumerManageProcessor, which answers from memory.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rmqstore_spark.broker.core.consumers.offsets import Offsets
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.faces.remoting.lanes.worker import FairQueue
from rmqstore_spark.broker.faces.remoting.row import refused
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import OVERLOAD, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler, NoAnswerRoomError

CLOSING: Final = "the broker is shutting down"

_R = TypeVar("_R")


@dataclass(slots=True)
class _Job:
    """Some work, and what waits for its end."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]


class HandlerThread:
    """Runs handlers.

    Args:
        name: of the thread.
        most: how many requests may wait. With more, one of the connection that has most of them
            is refused with SYSTEM_BUSY.
    """

    def __init__(self, name: str, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._changed = threading.Condition()
        self._jobs: FairQueue[_Job] = FairQueue()
        self._count = 0  # that wait or are handled
        self._is_closing = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[..., _R], *given: Any) -> asyncio.Future[_R]:
        """Do some work in the thread, when its turn comes.

        Args:
            work: is called with what is given.

        Raises:
            RemotingError: too much waits.
        """
        return self._run_for(None, lambda: work(*given))

    def refuse(self) -> None:
        """From now on, refuse what waits instead of handling it, unless it is always handled."""
        self._is_closing = True

    def close(self) -> None:
        """Wait until nothing is left, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def handler(
        self, handler: Handler, *, always: bool = False
    ) -> Callable[..., asyncio.Future[Any]]:
        """Return a handler that runs the given one in the thread.

        Args:
            handler: the handler.
            always: run it also when nobody waits for the answer, or the broker is being closed.
        """

        def handle(connection: RemotingConnection, request: Command) -> Any:
            if not always:
                if self._is_closing:
                    raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, CLOSING)
                if not (connection.is_open or request.is_one_way):
                    return None  # nobody waits for the answer any more
                if not connection.has_answer_room:
                    raise NoAnswerRoomError
            return handler(connection, request)

        return lambda connection, request: self._run_for(
            connection, lambda: handle(connection, request)
        )

    def _run_for(self, owner: Hashable, work: Callable[[], Any]) -> asyncio.Future[Any]:
        job = _Job(work, self._loop.create_future())
        with self._changed:
            if self._count >= self._most:
                other = self._jobs.take_from_longest(owner)
                if other is None:
                    raise RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
                self._count -= 1
                other.done.set_exception(RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD))
            self._count += 1
            self._jobs.add(owner, job)
            self._changed.notify()
        return job.done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    return
                (job,) = self._jobs.take(1)
            result, error = None, None
            try:
                result = job.work()
            except Exception as raised:  # noqa: BLE001 - who waits for it gets it
                error = raised
            with self._changed:
                self._count -= 1
            self._loop.call_soon_threadsafe(_finish, job.done, result, error)


def _finish(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():  # who waited was cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class SavedReports:
    """Lets answers to reports wait for the disk. Use it in the thread of the event loop.

    Args:
        thread: takes reports, and writes them.
        offsets: what was reported.
    """

    def __init__(self, thread: HandlerThread, offsets: Offsets) -> None:
        self._thread = thread
        self._offsets = offsets

    def handler(self, take: Handler) -> Handler:
        """Return a handler that takes a report as the given one does, and answers later.

        Args:
            take: takes a report in the thread.
        """
        # In any case: a consumer reports its progress and goes, and so may the broker.
        moved = self._thread.handler(take, always=True)

        def handle(
            connection: RemotingConnection, request: Command
        ) -> Awaitable[Command | None] | None:
            taken = moved(connection, request)  # now: requests are handled in their order
            return taken if request.is_one_way else self._saved(taken)

        return handle

    async def _saved(self, taken: asyncio.Future[Command | None]) -> Command | None:
        answer = await taken
        try:
            await self._thread.run(self._offsets.save)  # the first one writes all that gathered
        except Refusal as error:
            raise refused(error) from error
        return answer
