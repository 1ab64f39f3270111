"""Takes requests to send: all that have gathered are stored together.

Upstream: SendMessageProcessor, BrokerFastFailure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.messages import Send
from rmqstore_spark.broker.faces.remoting.headers import named_topic
from rmqstore_spark.broker.faces.remoting.lanes.new_topics import NewTopics
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.broker.faces.remoting.refusals import refused
from rmqstore_spark.broker.faces.remoting.results import REGION
from rmqstore_spark.broker.faces.remoting.row import LaneRows
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.connection import Request

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
"""Requests that may wait to be stored, as many as a broker's `sendThreadPoolQueueCapacity`."""
_TOPIC_PATIENCE: Final = 3.0
"""Seconds that a send may wait for its topic: as long as for the lock of RocketMQ's table."""
_MOST_BYTES: Final = 4 << 20
"""Bytes of requests that are stored at once, if there is more than one."""
_TOO_LATE: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_FAILED: Final = "the send failed because of an error in the broker; its log says more"


class SendRequests:
    """Handles such requests: in the thread that has read them, or in one of its own.

    The first is faster, and the second is for what has to wait: for the disk, for slaves, for
    other puts, and for requests that came before. Those that need a topic wait in a third.

    Args:
        core: stores the messages.
        rows: read and check requests, and tell where their messages are.
    """

    def __init__(self, core: Core, rows: LaneRows[Send]) -> None:
        self._producing = core.producing
        self._rows = rows
        self._patience = core.store.config.wait_time_mills_in_send_queue / 1000
        patience = max(self._patience, _TOPIC_PATIENCE)
        self._new_topics = NewTopics(
            core.catalog,
            self._make_topics,
            lambda requests: self._handle_all(requests, patience),
            _MOST_WAITING,
        )
        self._worker: Worker[Request] = Worker("rmqstore-send", self)
        self._worker.start()

    def __len__(self) -> int:
        return len(self._worker) + len(self._new_topics)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        new = [request for request in requests if not self._needs_no_topic(request)]
        if new:
            self._new_topics.take(new)
            requests = [request for request in requests if request not in set(new)]
        if not requests:
            return
        if self._worker.is_idle and not self._producing.would_wait:
            self.handle(requests)
        else:
            take_requests(self._worker, requests, _MOST_WAITING)

    def _needs_no_topic(self, request: Request) -> bool:
        """Return whether a request surely creates no topic, and need not wait for others."""
        name = named_topic(request.command)
        return self._producing.needs_no_topic(name) and name not in self._new_topics

    def _make_topics(self, request: Request) -> None:
        """Create the topics that a request needs; if it is wrong, storing it tells why."""
        with suppress(RemotingError):
            self._producing.make_topics(self._rows.read(request.command))

    def close(self) -> None:
        """Store what waits, and end the threads."""
        self._new_topics.close()
        self._worker.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """Store the messages of requests, and answer them."""
        self._handle_all(jobs, self._patience)

    def _handle_all(self, jobs: Sequence[Request], patience: float) -> None:
        try:
            self._handle(jobs, patience)
        except BaseException:
            for request in jobs:  # those that have an answer get no other
                _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))
            raise

    def _handle(self, jobs: Sequence[Request], patience: float) -> None:
        requests: list[Request] = []
        sends: list[Send] = []
        size = 0
        for request in jobs:
            if sends and size + request.command.size > _MOST_BYTES:
                self._store_all(requests, sends)
                requests, sends, size = [], [], 0
            try:
                self._check_wait(request, patience)
                sends.append(self._rows.accept(request))
                requests.append(request)
                size += request.command.size
            except RemotingError as error:
                _refuse(request, error)
            except Exception:  # noqa: BLE001 - one must not fail those of other clients
                _log.exception("A send failed.")
                _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))
        if sends:
            self._store_all(requests, sends)

    def _check_wait(self, request: Request, patience: float) -> None:
        """Refuse a request whose client waits for an answer no more, and sends it again."""
        waited = time.monotonic() - request.arrived
        if waited > patience and not request.command.is_one_way:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{_TOO_LATE}, period in queue: {waited * 1000:.0f}ms, size of queue: {len(self)}",
            )

    def _store_all(self, requests: Sequence[Request], sends: Sequence[Send]) -> None:
        """Store messages, and half messages: of each kind, all at once."""
        for are_halves in (False, True):
            of_kind = [send for send in sends if send.is_half == are_halves]
            if of_kind:
                self._producing.store(of_kind, are_halves=are_halves)
                for request, send in zip(requests, sends, strict=True):
                    if send.is_half == are_halves:
                        self._answer(request, send)

    def _answer(self, request: Request, send: Send) -> None:
        if send.refusal is not None:
            _refuse(request, refused(send.refusal))
        else:
            request.reply(self._rows.answer(request.command, send))


def _refuse(request: Request, error: RemotingError) -> None:
    request.reply(request.command.answer(error.code, error.remark, dict(REGION)))
