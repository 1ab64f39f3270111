"""Gives messages to consumers. Requests for messages that are not there yet wait for them.

Most requests are for messages that were stored lately. They are answered in the thread that reads
from the sockets, unless that would have to wait for the disk or for other threads.

Upstream: PullRequestHoldService, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from rmqstore_spark.broker.core.consumers.pulls import Pull, Pulls
from rmqstore_spark.broker.core.consumers.waiting_pulls import Queue, WaitingPulls
from rmqstore_spark.broker.faces.remoting.headers import named_group
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.broker.faces.remoting.row import LaneRows
from rmqstore_spark.engine.queue_reader import NoRoomForReadingError, Reading
from rmqstore_spark.errors import RemotingError, RmqStoreError
from rmqstore_spark.remoting.answers import LARGE
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.connection import RemotingConnection, Request

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 100_000
_LOOK_SECONDS: Final = 0.5
_MOST_AT_ONCE: Final = 64
"""Jobs that are taken together; all that come meanwhile wait for them."""
_MOST_STEPS: Final = 16
"""How often a request without messages for it is read on at once, before it gets an answer."""
_FAILED: Final = "the pull failed because of an error in the broker; its log says more"

_MOST_WOKEN: Final = 256
"""Requests that a message wakes and that are looked at together; all that come meanwhile wait."""
_MORE: Final[Queue] = "", -1
"""In place of a queue: there are more requests to look at."""

_Job: TypeAlias = Request | RemotingConnection | Queue


class Consuming:
    """Answers requests for messages: in the thread that has read them, or in one of its own.

    The first is faster, and the second is for what has to wait. It watches the queues of the store.

    Args:
        pulls: reads messages.
        rows: read and check requests, and tell what they get.
    """

    def __init__(self, pulls: Pulls, rows: LaneRows[Pull]) -> None:
        self._at_work = threading.Lock()  # held by the thread that uses the next four
        self._pulls = pulls
        self._rows = rows
        self._waiting = WaitingPulls()
        self._woken: dict[Pull, None] = {}
        self._looked = time.monotonic()
        self._worker: Worker[_Job] = Worker("rmqstore-pull", self, _LOOK_SECONDS, _MOST_AT_ONCE)
        self._worker.start()

    @property
    def held(self) -> int:
        """How many requests wait for messages."""
        return len(self._waiting)

    @property
    def given(self) -> int:
        """How many messages were given to consumers."""
        return self._pulls.given

    def __len__(self) -> int:
        return len(self._worker)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests for messages that arrived together; see `dispatch.GroupHandler`."""
        left = requests
        if self._worker.is_idle and self._at_work.acquire(blocking=False):
            try:
                left = [each for each in requests if not self._taken_at_once(each)]
            finally:
                self._at_work.release()
        if left:
            take_requests(self._worker, left, _MOST_WAITING)

    def queue_grew(self, topic: str, queue_id: int) -> None:
        """Wake the requests that wait for messages of a queue; see `QueueWatcher`."""
        queue = topic, queue_id
        if queue in self._waiting:
            self._worker.add((queue,))

    def closed(self, connection: RemotingConnection) -> None:
        """Forget the requests of a connection that has ended."""
        for job in self._worker.remove(connection):
            if isinstance(job, Request):
                job.drop()
        self._worker.add((connection,))

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        self._worker.close()
        with self._at_work:
            self._end(self._waiting.all())
            self._pulls.close()

    def handle(self, jobs: Sequence[_Job]) -> None:
        """Answer or hold requests, and answer those whose messages have come or time is over."""
        with self._at_work:
            self._handle(jobs)

    def _handle(self, jobs: Sequence[_Job]) -> None:
        woken: dict[Queue, None] = {}
        for job in jobs:
            if isinstance(job, Request):
                self._take(job)
            elif isinstance(job, tuple):
                woken[job] = None
            else:
                for pull in self._waiting.of_connection(job):
                    self._waiting.remove(pull)
                    pull.asker.drop()
        for queue in woken:
            self._woken.update(dict.fromkeys(self._concerned(queue)))
        for _ in range(min(len(self._woken), _MOST_WOKEN)):
            pull = next(iter(self._woken))
            del self._woken[pull]
            if self._waiting.has(pull):
                self._look_again(pull)
        if self._woken:
            self._worker.add((_MORE,))
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._end(self._waiting.ended(now))

    def _taken_at_once(self, request: Request) -> bool:
        """Answer or hold a request; return False, and do nothing, if that would have to wait."""
        if self._pulls.may_create(named_group(request.command)):
            return False
        try:
            self._take(request, may_wait=False)
        except BlockingIOError:
            return False
        return True

    def _take(self, request: Request, *, may_wait: bool = True) -> None:
        command = request.command
        if not request.connection.is_open:
            request.drop()
            return
        if not request.connection.reads_answers:
            request.put_back()
            return
        try:
            pull = self._rows.accept(request)
            pull.asker = request
            most_bytes = _most_bytes(request.connection)
            reading = self._pulls.read(pull, may_wait=may_wait, most_bytes=most_bytes)
            if self._pulls.is_held(pull, reading):
                self._hold(pull, reading)
            else:
                self._answer(pull, reading)
        except NoRoomForReadingError:
            request.put_back()
        except RemotingError as error:
            request.reply(command.answer(error.code, error.remark))
        except (RmqStoreError, OSError) as error:
            if isinstance(error, BlockingIOError) and not may_wait:
                raise
            request.reply(command.answer(ResponseCode.SYSTEM_ERROR, str(error)))
        except Exception:  # noqa: BLE001 - one must not fail those of other clients
            _log.exception("A pull failed.")
            request.reply(command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))

    def _hold(self, pull: Pull, reading: Reading) -> None:
        connection = pull.asker.connection
        if self._waiting.is_full(connection):
            remark = f"{len(self._waiting)} requests wait for messages, as many as may"
            pull.asker.reply(pull.asker.command.answer(ResponseCode.SYSTEM_BUSY, remark))
            return
        pull.ends = pull.asker.arrived + pull.hold_seconds
        if not self._waiting.add(pull):
            self._answer(pull, reading)
        elif not connection.is_open:
            self._waiting.remove(pull)
            pull.asker.drop()
        elif self._pulls.has_more(pull):  # it came before anybody knew that this one waits
            self._look_again(pull)

    def _concerned(self, queue: Queue) -> list[Pull]:
        """Return the requests that what has come into a queue may concern."""
        if queue not in self._waiting:
            return []
        try:
            end, arrived = self._pulls.arrived(queue, self._waiting.tested(queue))
        except (RmqStoreError, OSError) as error:
            _log.warning("Could not read new queue entries: %s", error)
            end, arrived = self._waiting.tested(queue), None
        return self._waiting.concerned(queue, end, arrived)

    def _look_again(self, pull: Pull) -> None:
        """Answer a request that waits if there are messages for it now."""
        if self._puts_back(pull):
            return
        steps = 0
        reading = self._read(pull)
        while (
            reading is not None and reading.status == "NO_MATCHED_MESSAGE" and steps < _MOST_STEPS
        ):
            pull.offset = reading.next  # the next look begins there
            if reading.next >= reading.most:
                return
            reading, steps = self._read(pull), steps + 1
        if reading is not None and not self._pulls.is_held(pull, reading):
            self._finish(pull, reading)

    def _end(self, pulls: Iterable[Pull]) -> None:
        """Answer requests whose time is over."""
        for pull in pulls:
            if self._puts_back(pull):
                continue
            pull.offset = max(pull.offset, self._waiting.tested(pull.queue))
            reading = self._read(pull)
            if reading is not None:
                self._finish(pull, reading)

    def _puts_back(self, pull: Pull) -> bool:
        """Return a request that waits to its connection, if that does not read its answers."""
        connection = pull.asker.connection
        if connection.is_open and connection.reads_answers:
            return False
        self._waiting.remove(pull)
        pull.asker.put_back()
        return True

    def _read(self, pull: Pull) -> Reading | None:
        """Read messages for a request that waits; None if it does not wait any more."""
        try:
            return self._pulls.read(pull, most_bytes=_most_bytes(pull.asker.connection))
        except NoRoomForReadingError:
            self._waiting.remove(pull)
            pull.asker.put_back()
            return None
        except (RmqStoreError, OSError) as error:
            self._waiting.remove(pull)
            answer = pull.asker.command.answer(ResponseCode.SYSTEM_ERROR, str(error))
            pull.asker.reply(answer)
            return None

    def _finish(self, pull: Pull, reading: Reading) -> None:
        self._waiting.remove(pull)
        self._answer(pull, reading)

    def _answer(self, pull: Pull, reading: Reading) -> None:
        request: Request = pull.asker
        request.reply(self._rows.answer(request.command, self._pulls.settle(pull, reading)))


def _most_bytes(connection: RemotingConnection) -> int | None:
    """Return most bytes of an answer: few while all clients together have too much to read."""
    return None if connection.has_answer_room else LARGE
