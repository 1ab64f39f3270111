"""Takes requests to end transactions: all that have gathered are handled in a thread, together.

Those of transactions to the queues of a batch that is being committed wait in another, until that
is over: nearly all clients ask one-way, and would learn nothing of a refusal.
Upstream: EndTransactionProcessor.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.base.types import HalfId
from rmqstore_spark.broker.acl.gate import Gate
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.core.transactions import End, Ending
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker
from rmqstore_spark.broker.faces.remoting.row import LaneRows, refused
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import OVERLOAD, ResponseCode
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.remoting.peerlog import PeerLog

_MOST_WAITING: Final = 100_000
"""Requests that may wait, as many as a broker's `endTransactionPoolQueueCapacity`."""
_FAILED: Final = "the end failed because of an error in the broker; its log says more"


class _HeldEnds:
    """Ends transactions that a commit holds up, once it is over. Thread-safe.

    Args:
        ending: ends the transactions.
        ended, failed: tell the outcome; see `Ending.end_all`.
    """

    def __init__(
        self,
        ending: Ending,
        ended: Callable[[End], None],
        failed: Callable[[Sequence[End], Exception], None],
    ) -> None:
        self._ending = ending
        self._ended = ended
        self._failed = failed
        self._lock = threading.Lock()
        self._named: Counter[tuple[str, HalfId]] = Counter()
        self._worker: Worker[End] = Worker("rmqstore-held-ends", self)
        self._worker.start()

    def has(self, end: End) -> bool:
        """Whether an end of the same transaction waits here: a later one must not overtake it."""
        with self._lock:
            return end.name in self._named

    def take(self, ends: Sequence[End]) -> Sequence[End]:
        """Take ends; return those for which there is no room."""
        with self._lock:
            self._named.update(end.name for end in ends)
        refused = self._worker.add_if_room(ends, _MOST_WAITING)
        self._done(refused)
        return refused

    def handle(self, jobs: Sequence[End]) -> None:
        """End transactions, and tell the outcomes."""
        left = jobs
        try:
            while left:
                self._ending.await_commit()
                left = self._ending.end_all(left, self._ended, self._failed)
        except Exception as error:  # noqa: BLE001 - those that have an answer get no other
            self._failed(jobs, error)
        finally:
            self._done(jobs)

    def close(self) -> None:
        """End what waits, and end the thread."""
        self._worker.close()

    def _done(self, ends: Sequence[End]) -> None:
        with self._lock:
            for end in ends:
                self._named[end.name] -= 1
                if not self._named[end.name]:
                    del self._named[end.name]


class EndRequests:
    """Handles such requests, in a thread of its own.

    Args:
        ending: ends the transactions.
        rows: read requests, and tell that they are done.
        gate: knows who may end the transactions of which topics.
        reader: of the store's records, for the gate; it is closed here.
    """

    def __init__(
        self, ending: Ending, rows: LaneRows[End], gate: Gate, reader: QueueReader
    ) -> None:
        self._ending = ending
        self._rows = rows
        self._gate = gate
        self._reader = reader
        self._log = PeerLog(logging.getLogger(__name__))
        self._held = _HeldEnds(ending, self._ended, self._failed)
        self._worker: Worker[Request] = Worker("rmqstore-end", self)
        self._worker.start()

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        for request in self._worker.add_if_room(requests, _MOST_WAITING):
            self._refuse(request, RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD))

    def close(self) -> None:
        """End what waits, and end the threads."""
        self._worker.close()
        self._held.close()
        self._reader.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """End the transactions of requests, and answer them."""
        try:
            held, others = list[End](), list[End]()
            for end in self._read_all(jobs):
                (held if self._held.has(end) else others).append(end)
            held += self._ending.end_all(others, self._ended, self._failed)
            for end in self._held.take(held):
                self._refuse(end.asker, RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD))
        except BaseException:
            for request in jobs:  # those that have an answer get no other
                request.reply(request.command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))
            raise

    def _read_all(self, jobs: Sequence[Request]) -> list[End]:
        ends = []
        for request in jobs:
            try:
                end = self._read(request)
            except RemotingError as error:
                self._refuse(request, error)
                continue
            except Exception as error:  # noqa: BLE001 - one must not fail those of other clients
                self._fail([request], error)
                continue
            if end.is_commit is None:
                request.drop()  # it gets no answer, as from a broker
            else:
                ends.append(end)
        return ends

    def _read(self, request: Request) -> End:
        try:
            self._ending.require_master()
        except Refusal as error:
            raise refused(error) from error
        self._gate.check_place(request.command, request.connection.peer, self._reader)
        end = self._rows.accept(request)
        end.asker = request
        return end

    def _ended(self, end: End) -> None:
        request: Request = end.asker
        request.reply(self._rows.answer(request.command, end))

    def _failed(self, ends: Sequence[End], error: Exception) -> None:
        requests: list[Request] = [end.asker for end in ends]
        if not isinstance(error, Refusal):
            self._fail(requests, error)
            return
        for request in requests:
            self._refuse(request, refused(error))

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        """Answer requests that failed because of a bug, and log it."""
        peer = requests[0].connection.peer
        self._log.log(
            logging.ERROR, peer, "%d transactions, the first of %s, could not be ended.",
            len(requests), escaped(peer), error=error,
        )  # fmt: skip
        for request in requests:
            request.reply(request.command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))

    def _refuse(self, request: Request, error: RemotingError) -> None:
        """Answer with an error, and log it: most clients wait for no answer."""
        peer = request.connection.peer
        self._log.warning(
            peer, "A transaction of %s was not ended: %s", escaped(peer),
            escaped(error.remark.replace("\n", ". ")),
        )  # fmt: skip
        request.reply(request.command.answer(error.code, error.remark))
