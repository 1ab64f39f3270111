"""Takes requests for messages.

Most are for messages that were stored lately. They are answered in the thread that reads from the
sockets, unless that would have to wait for the disk or for other threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from rmqstore_spark.broker.core.consumers.long_polling import LongPolling
from rmqstore_spark.broker.core.consumers.pulls import Pull, Pulls
from rmqstore_spark.broker.core.consumers.waiting_pulls import Queue
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.faces.remoting.headers import named_group
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.broker.faces.remoting.row import LaneRows, refused
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
_FAILED: Final = "the pull failed because of an error in the broker; its log says more"
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
        self._at_work = threading.Lock()  # held by the thread that uses the next three
        self._pulls = pulls
        self._held = LongPolling(pulls, self)
        self._looked = time.monotonic()
        self._rows = rows
        self._worker: Worker[_Job] = Worker("rmqstore-pull", self, _LOOK_SECONDS, _MOST_AT_ONCE)
        self._worker.start()

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
        if queue in self._held:
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
            self._held.end()
            self._pulls.close()

    def handle(self, jobs: Sequence[_Job]) -> None:
        """Answer or hold requests, and answer those whose messages have come or time is over."""
        with self._at_work:
            self._handle(jobs)

    def _handle(self, jobs: Sequence[_Job]) -> None:
        grown: dict[Queue, None] = {}
        for job in jobs:
            if isinstance(job, Request):
                self._take(job)
            elif isinstance(job, tuple):
                grown[job] = None
            else:
                self._held.closed(job)
        self._held.wake(grown)
        if self._held.look():
            self._worker.add((_MORE,))
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._held.end(now)

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
        if not request.connection.out.reads_answers:
            request.put_back()
            return
        try:
            pull = self._rows.accept(request)
            pull.asker = request
            reading = self._pulls.read(pull, may_wait=may_wait, most_bytes=self.most_bytes(pull))
            if self._pulls.is_held(pull, reading):
                self._held.hold(pull, reading)
            else:
                self.answer(pull, reading)
        except NoRoomForReadingError:
            request.put_back()
        except (RemotingError, Refusal) as error:
            wrong = refused(error) if isinstance(error, Refusal) else error
            request.reply(command.answer(wrong.code, wrong.remark))
        except (RmqStoreError, OSError) as error:
            if isinstance(error, BlockingIOError) and not may_wait:
                raise
            request.reply(command.answer(ResponseCode.SYSTEM_ERROR, str(error)))
        except Exception:  # noqa: BLE001 - one must not fail those of other clients
            _log.exception("A pull failed.")
            request.reply(command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))

    # ---- for requests that are held --------------------------------------------------------------

    def may_answer(self, pull: Pull) -> bool:
        connection: RemotingConnection = pull.asker.connection
        return connection.is_open and connection.out.reads_answers

    def most_bytes(self, pull: Pull) -> int | None:
        # Few while all clients together have too much to read.
        return None if pull.asker.connection.has_answer_room else LARGE

    def answer(self, pull: Pull, reading: Reading) -> None:
        request: Request = pull.asker
        request.reply(self._rows.answer(request.command, self._pulls.settle(pull, reading)))

    def fail(self, pull: Pull, error: Exception) -> None:
        request: Request = pull.asker
        request.reply(request.command.answer(ResponseCode.SYSTEM_ERROR, str(error)))

    def put_back(self, pull: Pull) -> None:
        pull.asker.put_back()

    def drop(self, pull: Pull) -> None:
        pull.asker.drop()
