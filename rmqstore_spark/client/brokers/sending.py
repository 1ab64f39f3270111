"""Sends messages to the brokers of their topics, several requests at a time.

A queue has one request on the way, so that its messages keep their order: a broker may handle
requests of one connection in any order.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rmqstore_spark.client.brokers.answers import WritePlace, refusal, refuses_account
from rmqstore_spark.client.brokers.pipe import PipeError, RemotingPipe
from rmqstore_spark.client.brokers.routes import (
    DEFAULT_QUEUES,
    PublishRoutes,
)
from rmqstore_spark.client.contact import backoff
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.layout.constants import AUTO_CREATE_TOPIC
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_log = logging.getLogger("rmqstore_spark")


_SLOW: Final = (0.0, 0.55, 1.0, 2.0, 3.0, 15.0)
"""Seconds that a broker took to answer, from which on ..."""
_SECONDS: Final = (0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
"""... it is avoided for so many seconds. One that failed counts as the slowest."""


class AvoidedBrokers:
    """The brokers that are avoided for a while, because they failed or were slow.

    Upstream: MQFaultStrategy and LatencyFaultToleranceImpl, with `sendLatencyFaultEnable`.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def answered(self, broker: str, seconds: float) -> None:
        """Take note of how long a broker took to answer."""
        self._until[broker] = self._clock() + _SECONDS[bisect_right(_SLOW, seconds) - 1]

    def failed(self, broker: str) -> None:
        """Take note that a broker failed, or refused messages that another one may take."""
        self._until[broker] = self._clock() + _SECONDS[-1]

    def has(self, broker: str) -> bool:
        """Return whether a broker is avoided now."""
        return self._clock() < self._until.get(broker, 0.0)

    def soonest(self, brokers: Iterable[str]) -> str:
        """Return the one of some brokers that is avoided for the shortest time from now on."""
        return min(brokers, key=lambda name: self._until.get(name, 0.0))


_GROUP: Final = "rmqstore_spark"
"""The producer group of all messages."""
_AT_ONCE: Final = 16
"""Most requests on the way to a broker: their answers fit into the buffers of a connection."""

_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
_LATER: Final = frozenset(
    (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
)
"""The broker, or another one, may take the messages later."""
_ELSEWHERE: Final = frozenset((ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST))
"""Another broker may take the messages."""


@dataclass(frozen=True)
class OutgoingMessage:
    """What a request to send says about its messages.

    Attributes:
        topic: where they go.
        body: of the message, or of the batch.
        born: milliseconds.
        properties: of a single message.
        flag, reconsume_times: of a single message.
        is_batch: whether `body` is that of a batch.
    """

    topic: str
    body: bytes
    born: int
    properties: str = ""
    flag: int = 0
    reconsume_times: int = 0
    is_batch: bool = False

    def request(self, broker: str, queue_id: int) -> Command:
        """Return the request that sends it to a queue."""
        fields = {
            "a": _GROUP,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(DEFAULT_QUEUES),
            "e": str(queue_id),
            "f": "0",
            "g": str(self.born),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "false",
            "m": "true" if self.is_batch else "false",
            "n": broker,
        }
        code = RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2
        return Command(code, fields, self.body)


@dataclass(eq=False)
class Outgoing:
    """Messages on their way to a queue.

    Attributes:
        message: the messages.
        broker, queue_id: the queue.
        can_move: whether another queue will do.
        tries: how often they failed to send.
        not_before: monotonic seconds before which they are not sent again.
        pauses: seconds to wait before they are sent again.
    """

    message: OutgoingMessage
    broker: str
    queue_id: int
    can_move: bool
    tries: int = 0
    not_before: float = 0.0
    pauses: Iterator[float] = field(default_factory=backoff)

    @property
    def queue(self) -> tuple[str, int]:
        """The queue among those of the broker."""
        return self.message.topic, self.queue_id

    @property
    def size(self) -> int:
        """About how many bytes are sent."""
        return len(self.message.body) + len(self.message.properties)


class _Line:
    """A connection to a broker, and what is on the way on it."""

    def __init__(self, place: WritePlace, identity: ClientIdentity) -> None:
        self.broker = place.name
        self.called = f"The broker {place.name} ({place.address})"
        self.pipe = RemotingPipe(place.address, identity)
        self.waiting: dict[int, Outgoing] = {}

    def has_room(self, out: Outgoing, most_bytes: int) -> bool:
        """Return whether messages may be sent before an answer comes."""
        waiting = self.waiting.values()
        if not waiting:
            return True
        held = sum(one.size for one in waiting)
        is_queue_free = all(one.queue != out.queue for one in waiting)
        return is_queue_free and len(waiting) < _AT_ONCE and held + out.size <= most_bytes

    def end(self) -> list[Outgoing]:
        """Close the connection, and return what was on the way."""
        self.pipe.close()
        lost = list(self.waiting.values())
        self.waiting.clear()
        return lost


class MessageSender:
    """Sends messages at least once. Use it in one thread.

    A broker that fails or is slow is avoided for a while: messages that may move go to another
    one. What has no answer is sent again, and may then be stored twice.

    Args:
        routes: the brokers of the topics.
        max_in_flight_bytes: most bytes on the way to one broker, if there is more than one request.
        answer_s: seconds that a broker may take for an answer.
        retries: how often messages are sent again.
        identity: as whom this side talks to brokers.
    """

    def __init__(
        self,
        routes: PublishRoutes,
        max_in_flight_bytes: int,
        answer_s: float,
        retries: int,
        identity: ClientIdentity,
    ) -> None:
        self._routes = routes
        self._identity = identity
        self._most_bytes = max_in_flight_bytes
        self._answer_s = answer_s
        self._retries = retries
        self._avoided = AvoidedBrokers()
        self._lines: dict[str, _Line] = {}
        self._due: deque[Outgoing] = deque()
        self._opaque = 0
        self._moves = 0
        self._has_warned = False

    def close(self) -> None:
        """Close all connections; what has no answer may still be stored."""
        for line in self._lines.values():
            line.end()

    def send(self, out: Outgoing) -> None:
        """Send messages; wait only while too much is on the way.

        Raises:
            RefusedError: a broker refuses messages, these or earlier ones.
            ServiceError: they could not be sent, however often this tried.
            TopicNotFoundError: nobody takes messages of the topic.
        """
        self._due.append(out)
        self._send_due()

    def finish(self) -> None:
        """Wait until everything is stored.

        Raises:
            RefusedError, ServiceError, TopicNotFoundError: as `send`.
        """
        while any(line.waiting for line in self._lines.values()):
            for line in list(self._lines.values()):
                if line.waiting:
                    self._take_answers(line)
            self._send_due()

    def _send_due(self) -> None:
        while self._due:
            out = self._due[0]
            self._place(out)
            line = self._line(out)
            if not line.has_room(out, self._most_bytes):
                self._take_answers(line)  # what it refuses goes first
                continue
            time.sleep(max(0.0, out.not_before - time.monotonic()))
            self._due.popleft()
            self._opaque = (self._opaque + 1) & 0x7FFFFFFF
            request = out.message.request(out.broker, out.queue_id)
            request.opaque = self._opaque
            is_idle = not line.waiting
            line.waiting[request.opaque] = out
            try:
                if is_idle:
                    line.pipe.open(self._answer_s)
                line.pipe.send([request], self._answer_s)
            except PipeError as error:
                self._failed(line, error)

    def _place(self, out: Outgoing) -> None:
        """Choose another queue for messages whose broker is avoided, if they may move."""
        if not out.can_move or not self._avoided.has(out.broker):
            return
        places = self._routes.of(out.message.topic)
        usable = [place for place in places if not self._avoided.has(place.name)]
        if usable:
            out.not_before = 0.0
        else:
            name = self._avoided.soonest(place.name for place in places)
            usable = [place for place in places if place.name == name]
        self._moves += 1
        place = usable[self._moves % len(usable)]
        if place.name != out.broker:
            out.broker, out.queue_id = place.name, self._moves % place.queues

    def _line(self, out: Outgoing) -> _Line:
        found = self._lines.get(out.broker)
        if found is None:
            places = self._routes.of(out.message.topic)
            place = next(place for place in places if place.name == out.broker)
            found = self._lines[out.broker] = _Line(place, self._identity)
        return found

    def _take_answers(self, line: _Line) -> None:
        began = time.monotonic()
        try:
            answers = line.pipe.receive(self._answer_s, line.waiting)
        except PipeError as error:
            self._failed(line, error)
            return
        self._avoided.answered(line.broker, time.monotonic() - began)
        for answer in answers:
            out = line.waiting.pop(answer.opaque, None)
            if out is not None:
                self._read(line, out, answer)

    def _read(self, line: _Line, out: Outgoing, answer: Command) -> None:
        if answer.code in _STORED:
            if answer.code != ResponseCode.SUCCESS and not self._has_warned:
                self._has_warned = True
                name = ResponseCode(answer.code).name
                _log.warning("%s has stored messages, but answers %s.", line.called, name)
            return
        why = f"{refusal(answer, line.called).remark.rstrip('.')}."
        is_elsewhere = out.can_move and len(self._routes.of(out.message.topic)) > 1
        may_pass = answer.code in _LATER and not refuses_account(answer)
        if not may_pass and not (answer.code in _ELSEWHERE and is_elsewhere):
            known = answer.code in ResponseCode._value2member_map_
            status = ResponseCode(answer.code).name if known else f"code {answer.code}"
            raise RefusedError(why, status)
        self._avoided.failed(line.broker)
        self._again([out], why)

    def _failed(self, line: _Line, error: PipeError) -> None:
        self._avoided.failed(line.broker)
        self._again(line.end(), f"{line.called} failed: {error}")

    def _again(self, lost: Sequence[Outgoing], why: str) -> None:
        """Send messages again, before all others."""
        for out in lost:
            out.tries += 1
            if out.tries > self._retries:
                raise ServiceError(
                    f"{why} Sending to topic {out.message.topic} failed {out.tries} times. Check "
                    "that the broker runs and that this machine can reach it.",
                    can_pass=True,
                )
            out.not_before = time.monotonic() + next(out.pauses)
            _log.info("%s Sending messages again (%d of %d).", why, out.tries, self._retries)
        self._due.extendleft(reversed(lost))
