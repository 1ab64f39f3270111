"""Takes requests to end transactions: all that have gathered are handled in a thread, together.

Upstream: EndTransactionProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.base.printable import escaped
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
        self._worker: Worker[Request] = Worker("rmqstore-end", self)
        self._worker.start()

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        for request in self._worker.add_if_room(requests, _MOST_WAITING):
            self._refuse(request, RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD))

    def close(self) -> None:
        """End what waits, and end the thread."""
        self._worker.close()
        self._reader.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """End the transactions of requests, and answer them."""
        try:
            self._ending.end_all(self._read_all(jobs), self._ended, self._failed)
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
