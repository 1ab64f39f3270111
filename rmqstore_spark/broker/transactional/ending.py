"""Ends transactions as their producers ask: all that have gathered, in few appends.

Upstream: EndTransactionProcessor, EndTransactionRequestHeader. Unlike it, this ends each
transaction once, and says so when it is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.broker.acl.gate import Gate
from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.worker import Worker
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.transactions.answers import COMMITTED, ENDED_BEFORE, ROLLED_BACK, Ended
from rmqstore_spark.errors import RefusedError, RemotingError
from rmqstore_spark.layout.constants import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.codes import OVERLOAD, ResponseCode
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, Fields
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.remoting.peerlog import PeerLog
from rmqstore_spark.types import HalfId

__all__ = ["Ending"]

_MOST_WAITING: Final = 100_000
"""Requests that may wait, as many as a broker's `endTransactionPoolQueueCapacity`."""
_FAILED: Final = "the end failed because of an error in the broker; its log says more"
_NOT_FOUND: Final = "Find prepared transaction message failed"
_OUTCOMES: Final = {TRANSACTION_COMMIT_TYPE: True, TRANSACTION_ROLLBACK_TYPE: False}


@dataclass(slots=True)
class _End:
    """A request to end a transaction.

    Attributes:
        request: the request.
        group: the producer group.
        half: the half message.
        is_commit: whether to commit it.
    """

    request: Request
    group: str
    half: HalfId
    is_commit: bool


class Ending:
    """Ends transactions, in a thread of its own.

    Args:
        store: the store.
        catalog: knows whether it is a slave.
        gate: knows who may end the transactions of which topics.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, gate: Gate) -> None:
        self._transactions = store.transactions
        self._catalog = catalog
        self._gate = gate
        self._reader = store.queue_reader()
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
            left = self._read_all(jobs)
            while left:
                left = self._end_some(left)
        except BaseException:
            for request in jobs:  # those that have an answer get no other
                request.reply(request.command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))
            raise

    def _read_all(self, jobs: Sequence[Request]) -> list[_End]:
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
            if end is None:
                request.drop()  # the producer does not know yet
            else:
                ends.append(end)
        return ends

    def _read(self, request: Request) -> _End | None:
        """Read a request; None if it tells no outcome, and gets no answer, as from a broker."""
        if self._catalog.is_slave:
            raise RemotingError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "Message store is slave mode, so end transaction is forbidden.",
            )
        self._gate.check_place(request, self._reader)
        fields = Fields(request.command.ext)
        group = fields.name("producerGroup")
        half = HalfId(
            fields.long("tranStateTableOffset", 0, MAX_LONG),
            fields.long("commitLogOffset", 0, MAX_LONG),
        )
        is_commit = _OUTCOMES.get(fields.long("commitOrRollback", -MAX_INT, MAX_INT))
        return None if is_commit is None else _End(request, group, half, is_commit)

    def _end_some(self, ends: Sequence[_End]) -> list[_End]:
        """End transactions, those of a group and outcome together; return what must come later.

        These ask for another outcome of a transaction that an earlier request has ended here.
        """
        together: dict[tuple[str, bool], list[_End]] = {}
        outcomes: dict[tuple[str, HalfId], bool] = {}
        later = []
        for end in ends:
            if outcomes.setdefault((end.group, end.half), end.is_commit) == end.is_commit:
                together.setdefault((end.group, end.is_commit), []).append(end)
            else:
                later.append(end)
        for (group, is_commit), part in together.items():
            halves = [end.half for end in part]
            try:
                done = self._transactions.end(group, halves, is_commit=is_commit)
            except RefusedError as error:
                refusal = RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error.args[0]))
                for end in part:
                    self._refuse(end.request, refusal)
                continue
            except Exception as error:  # noqa: BLE001 - as above
                self._fail([end.request for end in part], error)
                continue
            for end, ended in zip(part, done, strict=True):
                self._answer(end.request, ended)
        return later

    def _answer(self, request: Request, ended: Ended) -> None:
        if ended.status in (COMMITTED, ROLLED_BACK):
            request.reply(request.command.answer(remark=ended.remark or None))
        elif ended.status == ENDED_BEFORE:
            remark = "The transaction had ended before; nothing was stored."
            request.reply(request.command.answer(remark=remark))
        else:
            remark = f"{_NOT_FOUND}\n{ended.remark}"
            self._refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, remark))

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
