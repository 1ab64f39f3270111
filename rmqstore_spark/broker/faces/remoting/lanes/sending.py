"""Takes requests to send: all that have gathered are stored together.

Those to topics that do not exist wait in a thread of their own, so that others pass by, and so do
those to topics of a batch that is being committed, in another. (All delayed messages are in one
topic, and half messages too.) All that gather in the first get their topics with one write of a
file. Upstream: SendMessageProcessor, BrokerFastFailure,
TopicConfigManager.createTopicInSendMessageMethod, which writes the file for each topic.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.messages import Send
from rmqstore_spark.broker.faces.remoting.headers import named_topic, storing_topic
from rmqstore_spark.broker.faces.remoting.lanes.later_answers import LaterAnswers
from rmqstore_spark.broker.faces.remoting.lanes.plain_sends import MOST_BYTES, PlainSends
from rmqstore_spark.broker.faces.remoting.lanes.send_rounds import SendRounds
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.broker.faces.remoting.results import REGION
from rmqstore_spark.broker.faces.remoting.row import LaneRows, refused
from rmqstore_spark.errors import FrameError, RemotingError, StoreWriteError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.plain import PlainSend
from rmqstore_spark.remoting.connection import Request

_log = logging.getLogger(__name__)


class WaitingSends:
    """Stores the messages of sends that have to wait for their topics. Thread-safe.

    Args:
        name: of its thread.
        prepare: makes requests ready, such as creating topics.
        store: stores the messages of requests.
        most: requests that may wait.
        name_of: returns the topic of a request for which it waits.

    Attributes:
        named: how many requests to each topic are here: later ones must not overtake them.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[Sequence[Request]], None],
        store: Callable[[Sequence[Request]], None],
        most: int,
        name_of: Callable[[Command], str],
    ) -> None:
        self._name_of = name_of
        self._prepare = prepare
        self._store = store
        self._most = most
        self._lock = threading.Lock()
        self.named: Counter[str] = Counter()
        self._worker: Worker[Request] = Worker(name, self)
        self._worker.start()

    def __len__(self) -> int:
        return len(self._worker)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        with self._lock:
            self.named.update(self._names(requests))
        refused = take_requests(self._worker, requests, self._most)
        self._done(refused)

    def handle(self, jobs: Sequence[Request]) -> None:
        """Make requests ready, and store their messages."""
        try:
            self._prepare(jobs)
            self._store(jobs)
        finally:
            self._done(jobs)

    def close(self) -> None:
        """Store what waits, and end the thread."""
        self._worker.close()

    def _names(self, requests: Sequence[Request]) -> list[str]:
        return [self._name_of(request.command) for request in requests]

    def _done(self, requests: Sequence[Request]) -> None:
        with self._lock:
            for name in self._names(requests):
                self.named[name] -= 1
                if not self.named[name]:
                    del self.named[name]


_MOST_WAITING: Final = 10_000
"""Requests that may wait to be stored, as many as a broker's `sendThreadPoolQueueCapacity`."""
_TOPIC_PATIENCE: Final = 3.0
"""Seconds that a send may wait for its topic: as long as for the lock of RocketMQ's table."""
_TOO_LATE: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_FAILED: Final = "the send failed because of an error in the broker; its log says more"


class SendRequests:
    """Handles such requests: in the thread of the event loop, or in one of its own.

    The first is faster, and the second is for what has to wait: for the disk, for slaves, for
    other puts, and for requests that came before. Those that need a topic wait in a third. Plain
    ones to a group are stored in the first too: they are answered when a quorum has them, and
    nobody waits for that.

    Args:
        core: stores the messages.
        rows: read and check requests, and tell where their messages are.
    """

    def __init__(self, core: Core, rows: LaneRows[Send]) -> None:
        self._producing = core.producing
        self._rows = rows
        self._loop = asyncio.get_running_loop()
        self._plain = PlainSends(core)
        self._patience = core.store.config.wait_time_mills_in_send_queue / 1000
        patience = max(self._patience, _TOPIC_PATIENCE)
        self._catalog = core.catalog
        self._queues_later = self._producing.queues_later()
        self._new_topics = WaitingSends(
            "rmqstore-new-topics", self._make_topics,
            lambda requests: self._handle(requests, patience), _MOST_WAITING,
            named_topic,
        )  # fmt: skip
        self._held_topics = WaitingSends(
            "rmqstore-held-topics", lambda _: None,
            lambda requests: self._store(requests, patience, waits=True), _MOST_WAITING,
            storing_topic,
        )  # fmt: skip
        self._worker: Worker[Request] = Worker("rmqstore-send", self)
        self._worker.start()
        later = self._producing.puts_later
        self._later = None if later is None else LaterAnswers(later)
        self._rounds = None if later is None else SendRounds(self._begin_round)

    def __len__(self) -> int:
        waiting = 0 if self._rounds is None else len(self._rounds)
        return waiting + len(self._worker) + len(self._new_topics) + len(self._held_topics)

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        if len(requests) == 1 and self._took_single(requests[0]):
            return
        names = [named_topic(request.command) for request in requests]
        new = {name for name in set(names) if self._may_be_new(name)}
        known = requests
        if new:
            known = [each for each, name in zip(requests, names, strict=True) if name not in new]
            self._new_topics.take(
                [each for each, name in zip(requests, names, strict=True) if name in new]
            )
        if not known:
            return
        if self._worker.is_idle and not self._producing.would_wait:
            try:
                with self._queues_later:  # nothing is waited for meanwhile
                    self._handle(known, self._patience)
            finally:
                self._loop.call_soon(self._producing.fill_queues)  # once the answers are written
            return
        rounds = self._rounds
        if rounds is not None:
            if self._worker.is_idle and all(type(each.command) is PlainSend for each in known):
                rounds.take(known)
                return
            rounds.begin()  # first: plain messages of a connection are stored in their order
        take_requests(self._worker, known, _MOST_WAITING)

    def _may_be_new(self, name: str) -> bool:
        """Whether a send to a topic may create it, or has to wait for others that do."""
        return not self._producing.needs_no_topic(name) or name in self._new_topics.named

    def _begin_round(self, requests: Sequence[Request]) -> None:
        """Store the messages of plain requests to a group, which are answered later."""
        try:
            left = self._without_held(requests)
            if left and not self._producing.is_busy and not self._are_late(left, self._patience):
                left = self._plain.store(left, patient=False, rounds=self._rounds)
        except BaseException:
            _fail(requests)
            raise
        if left:
            take_requests(self._worker, left, _MOST_WAITING)

    def _are_late(self, requests: Sequence[Request], patience: float) -> bool:
        return time.monotonic() - min(request.arrived for request in requests) > patience

    def _took_single(self, request: Request) -> bool:
        """Store the message of a request that has come alone, if it waits for nothing.

        Returns:
            Whether that is done, and it is answered; else nothing is.
        """
        if (
            not self._worker.is_idle
            or self._new_topics.named
            or self._held_topics.named
            or self._producing.would_wait
            or time.monotonic() - request.arrived > self._patience
        ):
            return False
        try:
            with self._queues_later:
                return self._plain.store_single(request)
        finally:
            self._loop.call_soon(self._producing.fill_queues)  # once the answer is written

    def _make_topics(self, requests: Sequence[Request]) -> None:
        """Create the topics that requests need; if one is wrong, storing it tells why."""
        try:
            with suppress(StoreWriteError), self._catalog.together():
                for request in requests:
                    with suppress(RemotingError, FrameError):
                        self._producing.make_topics(self._rows.read(request.command))
        except Exception:  # noqa: BLE001 - each of them needs an answer
            _log.exception("The topics of sends could not be created.")

    def close(self) -> None:
        """Store what waits, and end the threads."""
        if self._rounds is not None:
            self._rounds.close()
        self._new_topics.close()
        self._worker.close()
        self._held_topics.close()
        if self._later is not None:
            self._later.close()
        self._plain.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """Store the messages of requests, and answer them."""
        self._handle(jobs, self._patience)

    def _handle(self, jobs: Sequence[Request], patience: float) -> None:
        """Store the messages of requests, but for those that a commit holds up."""
        if jobs := self._without_held(jobs):
            self._store(jobs, patience, waits=False)

    def _without_held(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Let requests that a commit holds up wait apart; return the others."""
        topics, waiting = self._producing.held_topics, self._held_topics.named
        if not (topics or waiting):
            return requests
        held, others = list[Request](), list[Request]()
        for request in requests:
            name = storing_topic(request.command)
            (held if name in topics or name in waiting else others).append(request)
        if held:
            self._held_topics.take(held)
        return others

    def _store(self, jobs: Sequence[Request], patience: float, *, waits: bool) -> None:
        try:
            if not self._are_late(jobs, patience):
                jobs = self._plain.store(jobs, patient=waits)
                if not waits:  # a commit may have begun
                    jobs = self._without_held(jobs)
            messages, halves = list[tuple[Request, Send]](), list[tuple[Request, Send]]()
            size = 0
            for request in jobs:
                if size and size + request.command.size > MOST_BYTES:
                    self._store_all(messages, halves, waits)
                    size = 0
                try:
                    waited = time.monotonic() - request.arrived
                    if waited > patience and not request.command.is_one_way:
                        raise self._too_late(waited)
                    send = self._rows.accept(request)
                    (halves if send.is_half else messages).append((request, send))
                    size += request.command.size
                except RemotingError as error:
                    _refuse(request, error)
                except FrameError as error:
                    _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, str(error)))
                except Exception:  # noqa: BLE001 - one must not fail those of other clients
                    _log.exception("A send failed.")
                    _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))
            self._store_all(messages, halves, waits)
        except BaseException:
            _fail(jobs)
            raise

    def _too_late(self, waited: float) -> RemotingError:
        """Return the answer to a client that waits for it no more, and sends it again."""
        return RemotingError(
            ResponseCode.SYSTEM_BUSY,
            f"{_TOO_LATE}, period in queue: {waited * 1000:.0f}ms, size of queue: {len(self)}",
        )

    def _store_all(
        self, messages: list[tuple[Request, Send]], halves: list[tuple[Request, Send]], waits: bool
    ) -> None:
        """Store messages, and half messages: of each kind, all at once; and answer them.

        Unless this thread waits for commits, those that one holds up wait apart.
        """
        for kind in (messages, halves):
            if not kind:
                continue
            requests, sends = zip(*kind, strict=True)
            kind.clear()
            self._producing.store(sends, are_halves=sends[0].is_half, patient=waits)
            for request, send in zip(requests, sends, strict=True):
                if send.is_held:
                    continue
                if send.refusal is not None:
                    _refuse(request, refused(send.refusal))
                else:
                    request.reply(self._rows.answer(request.command, send))
            held = [each for each, send in zip(requests, sends, strict=True) if send.is_held]
            if held:
                self._held_topics.take(held)


def _fail(requests: Sequence[Request]) -> None:
    """Answer requests that an error has ended; those that have an answer get no other."""
    for request in requests:
        _refuse(request, RemotingError(ResponseCode.SYSTEM_ERROR, _FAILED))


def _refuse(request: Request, error: RemotingError) -> None:
    request.reply(request.command.answer(error.code, error.remark, dict(REGION)))
