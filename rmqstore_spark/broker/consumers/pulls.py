"""Answers requests for messages, from what the queues hold now.

Upstream: PullMessageProcessor.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.clients import Clients
from rmqstore_spark.broker.heartbeat import TAG, Subscription, tag_codes
from rmqstore_spark.broker.statistics import GROUP_GET_NUMS, GROUP_GET_SIZE, Statistics
from rmqstore_spark.engine.queue_reader import QueueReader, Reading
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.groups import ConsumerGroup
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.layout.spans import I4
from rmqstore_spark.remoting.answers import LARGE
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import MAX_INT, MAX_LONG, Fields
from rmqstore_spark.remoting.connection import Request

__all__ = ["Pull", "Pulls"]

_COMMITS: Final = 1
_SUSPENDS: Final = 2
_HAS_SUBSCRIPTION: Final = 4
_MOST_HOLD_MS: Final = 60_000
_MASTER: Final = 0

_CODES: Final = {
    "FOUND": ResponseCode.SUCCESS,
    "MESSAGE_WAS_REMOVING": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "NO_MATCHED_MESSAGE": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "OFFSET_FOUND_NULL": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_ONE": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_BADLY": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_TOO_SMALL": ResponseCode.PULL_OFFSET_MOVED,
}


@dataclass(slots=True, eq=False)
class Pull:
    """A request for messages of a queue that may be answered.

    Attributes:
        request: the request.
        group: whose consumer asks.
        topic, queue_id: the queue.
        offset: from which on.
        most: most messages.
        codes: hash codes of the tags that are wanted; None: all messages.
        hold_seconds: how long it may wait for messages; 0: not at all.
        ends: when its time is over, once it waits.
    """

    request: Request
    group: ConsumerGroup
    topic: str
    queue_id: int
    offset: int
    most: int
    codes: I4 | None
    hold_seconds: float
    ends: float = 0.0

    @property
    def queue(self) -> tuple[str, int]:
        """The queue."""
        return self.topic, self.queue_id


class Pulls:
    """Reads requests for messages, and messages for them. Used by one thread at a time.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected, with their subscriptions.
        reader: of the queues.
        statistics: count the messages.

    Attributes:
        given: messages that were given to consumers.
    """

    def __init__(
        self,
        store: StoreWriter,
        catalog: Catalog,
        clients: Clients,
        reader: QueueReader,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clients = clients
        self._reader = reader
        self._statistics = statistics
        self._may_read_slaves = store.config.slave_read_enable
        self.given = 0

    def accept(self, request: Request) -> Pull:
        """Read and check a request, and take note of the offset that it commits.

        Raises:
            RemotingError: it is refused.
            FrameError: its subscription is too long.
        """
        self._catalog.require_readable()
        command = request.command
        fields = Fields(command.ext)
        group = self._catalog.group(fields.text("consumerGroup"))
        if not group.may_consume:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}"
            )
        topic = self._catalog.topic_to_read(fields.text("topic"))
        queue_id = fields.long("queueId", -MAX_INT, MAX_INT)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{request.connection.peer}]",
            )
        flags = fields.long("sysFlag", -MAX_INT, MAX_INT)
        if flags & _HAS_SUBSCRIPTION:
            kind = command.ext.get("expressionType") or TAG
            codes = tag_codes(command.ext.get("subscription", "")) if kind == TAG else None
        else:
            version = fields.long("subVersion", -MAX_LONG, MAX_LONG, 0)
            subscription = self._subscription(group.name, topic.name, version, group.may_broadcast)
            kind, codes = subscription.kind, subscription.codes
        if kind != TAG:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )
        hold = fields.long("suspendTimeoutMillis", -MAX_LONG, MAX_LONG, 0)
        pull = Pull(
            request,
            group,
            topic.name,
            queue_id,
            fields.long("queueOffset", -MAX_LONG, MAX_LONG),
            fields.long("maxMsgNums", -MAX_INT, MAX_INT),
            codes,
            min(max(hold, 0), _MOST_HOLD_MS) / 1000 if flags & _SUSPENDS else 0,
        )
        if flags & _COMMITS and not self._catalog.is_slave:
            offset = fields.long("commitOffset", -MAX_LONG, MAX_LONG, -1)
            if offset >= 0:
                self._store.consumer_offsets.report(group.name, topic.name, queue_id, offset)
        return pull

    def may_create(self, request: Request) -> bool:
        """Return whether a request may create its group: that has to be written to a file."""
        return self._store.groups.get(request.command.ext.get("consumerGroup", "")) is None

    def read(self, pull: Pull, *, may_wait: bool = True) -> Reading:
        """Read messages for a request, from its offset on.

        While all clients together have too much to read, only a few small ones are read.

        Args:
            pull: the request.
            may_wait: wait for the disk, and for other threads, if need be.

        Raises:
            BlockingIOError: it would have to wait, and may not.
            NoRoomForReadingError: there is no room for the messages now.
        """
        most_bytes = None if pull.request.connection.has_answer_room else LARGE
        wanted = pull.topic, pull.queue_id, pull.offset, pull.most, pull.codes
        # First what needs no wait: a read that may wait hands the interpreter to other threads,
        # and a busy event loop gives it back after a millisecond.
        with suppress(BlockingIOError):
            return self._reader.read(*wanted, may_wait=False, most_bytes=most_bytes)
        if not may_wait:
            raise BlockingIOError
        return self._reader.read(*wanted, most_bytes=most_bytes)

    def answer(self, pull: Pull, reading: Reading) -> Command:
        """Return the answer to a request."""
        code = _code(pull, reading)
        after, broker_id = reading.next, self._broker_to_read(pull.group, reading)
        if reading.count:
            self.given += reading.count
            whose = f"{pull.topic}@{pull.group.name}"
            self._statistics.count(GROUP_GET_NUMS, whose, reading.count)
            self._statistics.count(GROUP_GET_SIZE, whose, len(reading.data))
        if self._catalog.is_slave and code == ResponseCode.PULL_OFFSET_MOVED:
            # A slave may be behind its master, whose offsets count (offsetCheckInSlave=false).
            code, after = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset
            broker_id = pull.group.broker_id
        ext = {
            "suggestWhichBrokerId": str(broker_id),
            "nextBeginOffset": str(after),
            "minOffset": str(reading.least),
            "maxOffset": str(reading.most),
        }
        return pull.request.command.answer(code, reading.status, ext, reading.data)

    def _broker_to_read(self, group: ConsumerGroup, reading: Reading) -> int:
        """Return the `brokerId` from which a consumer reads on: old messages from a slave."""
        if not self._may_read_slaves:
            return _MASTER
        return group.slow_broker_id if reading.is_far else group.broker_id

    def has_more(self, pull: Pull) -> bool:
        """Return whether a queue has grown beyond the offset of a request."""
        return self._reader.range(pull.topic, pull.queue_id)[1] > pull.offset

    def arrived(self, queue: tuple[str, int], begin: int) -> tuple[int, list[int] | None]:
        """Return where a queue ends, and the tags of its entries from an offset on.

        Returns:
            One past the last entry, and the hash codes of their tags; None if these are not known.
        """
        topic, queue_id = queue
        end = self._reader.range(topic, queue_id)[1]
        codes = self._reader.tag_codes(topic, queue_id, begin, end)
        return end, None if codes is None else codes.tolist()

    def is_held(self, pull: Pull, reading: Reading) -> bool:
        """Return whether a request waits for messages after what was read."""
        return pull.hold_seconds > 0 and _code(pull, reading) == ResponseCode.PULL_NOT_FOUND

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _subscription(
        self, group: str, topic: str, version: int, may_broadcast: bool
    ) -> Subscription:
        """Return what a group said in its heartbeat that it consumes of a topic."""
        online = self._clients.group(group)
        if online is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if online.told.model == "BROADCASTING" and not may_broadcast:
            raise RemotingError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] can not consume by broadcast way",
            )
        found = online.subscription(topic)
        if found is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.version < version:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return found


def _code(pull: Pull, reading: Reading) -> ResponseCode:
    if reading.status == "NO_MESSAGE_IN_QUEUE":
        return ResponseCode.PULL_OFFSET_MOVED if pull.offset else ResponseCode.PULL_NOT_FOUND
    return _CODES[reading.status]
