"""Answers requests for messages, from what the queues hold now.

Upstream: PullMessageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.broker.core.statistics import GROUP_GET_NUMS, GROUP_GET_SIZE, Statistics
from rmqstore_spark.broker.core.subscriptions import TAG, Subscription, tag_codes
from rmqstore_spark.engine.queue_reader import QueueReader, Reading
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.groups import ConsumerGroup
from rmqstore_spark.layout.spans import I4

_MASTER: Final = 0
_UNKNOWN: Final = ConsumerGroup.from_json("", {})
_NOT_READ: Final = Reading("", 0, 0, 0, b"", 0, False)


class Outcome(Enum):
    """What a consumer does next."""

    FOUND = auto()
    """It consumes the messages."""
    AGAIN = auto()
    """It asks again at once, from the offset in the answer."""
    NOTHING = auto()
    """It asks again: there is nothing yet."""
    MOVED = auto()
    """It continues elsewhere: the queue does not have what it asked for."""


_OUTCOMES: Final = {
    "FOUND": Outcome.FOUND,
    "MESSAGE_WAS_REMOVING": Outcome.AGAIN,
    "NO_MATCHED_MESSAGE": Outcome.AGAIN,
    "OFFSET_FOUND_NULL": Outcome.NOTHING,
    "OFFSET_OVERFLOW_ONE": Outcome.NOTHING,
    "OFFSET_OVERFLOW_BADLY": Outcome.MOVED,
    "OFFSET_TOO_SMALL": Outcome.MOVED,
}


@dataclass(slots=True, eq=False)
class Pull:
    """A consumer wants messages of a queue; and what it gets.

    Attributes:
        group: whose consumer asks.
        topic, queue_id: the queue.
        offset: from which on.
        most: most messages.
        hold_seconds: how long it may wait for messages; 0: not at all.
        committed: the offset up to which the group has consumed the queue; negative: not told.
        has_expression: whether it says itself what it wants: `expression`, of a `kind`.
            Otherwise the group has said that in its heartbeat.
        kind, expression: what is wanted.
        version: least version of what the group has said.
        asker: the request, for who answers it; it is not looked at here, but for its connection.
        settings: of the group, once it is accepted.
        codes: hash codes of the tags that are wanted; None: all messages.
        ends: when its time is over, once it waits.
        reading: what was read for it, once that is its answer.
        outcome: what it does next, as the next two.
        next: the offset from which on it asks again.
        broker_id: from which broker of the master and its slaves.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    most: int
    hold_seconds: float
    committed: int
    has_expression: bool
    kind: str
    expression: str
    version: int
    asker: Any = None
    settings: ConsumerGroup = _UNKNOWN
    codes: I4 | None = None
    ends: float = 0.0
    reading: Reading = _NOT_READ
    outcome: Outcome = Outcome.NOTHING
    next: int = 0
    broker_id: int = _MASTER

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

    def accept(self, pull: Pull, peer: str) -> Pull:
        """Check what a consumer wants, and take note of the offset that it commits.

        Args:
            pull: what it wants; gets the settings of its group and the codes of its tags.
            peer: address of the consumer.

        Raises:
            Refusal: it gets nothing.
        """
        self._catalog.require_readable()
        group = self._catalog.group(pull.group)
        if not group.may_consume:
            raise Refusal(Reason.NOT_PERMITTED, f"subscription group no permission, {group.name}")
        topic = self._catalog.topic_to_read(pull.topic)
        if not 0 <= pull.queue_id < topic.read_queue_nums:
            raise Refusal(
                Reason.WRONG,
                f"queueId[{pull.queue_id}] is illegal, topic:[{topic.name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer}]",
            )
        if pull.has_expression:
            kind = pull.kind
            codes = tag_codes(pull.expression) if kind == TAG else None
        else:
            subscription = self._subscription(
                group.name, topic.name, pull.version, group.may_broadcast
            )
            kind, codes = subscription.kind, subscription.codes
        if kind != TAG:
            raise Refusal(
                Reason.WRONG,
                f"The broker does not support consumer to filter message by {kind}",
            )
        pull.settings, pull.codes = group, codes
        if pull.committed >= 0 and not self._catalog.is_slave:
            self._store.consumer_offsets.report(
                group.name, topic.name, pull.queue_id, pull.committed
            )
        return pull

    def may_create(self, group: str) -> bool:
        """Return whether a pull may create its group: that has to be written to a file."""
        return self._store.groups.get(group) is None

    def read(self, pull: Pull, *, may_wait: bool = True, most_bytes: int | None = None) -> Reading:
        """Read messages for a consumer, from its offset on.

        Args:
            pull: what it wants.
            most_bytes: most bytes of several messages; None: as many as the configuration says.
            may_wait: wait for the disk, and for other threads, if need be.

        Raises:
            BlockingIOError: it would have to wait, and may not.
            NoRoomForReadingError: there is no room for the messages now.
        """
        wanted = pull.topic, pull.queue_id, pull.offset, pull.most, pull.codes
        # First what needs no wait: a read that may wait hands the interpreter to other threads,
        # and a busy event loop gives it back after a millisecond.
        try:
            return self._reader.read(*wanted, may_wait=False, most_bytes=most_bytes)
        except BlockingIOError:
            if not may_wait:
                raise
        return self._reader.read(*wanted, most_bytes=most_bytes)

    def settle(self, pull: Pull, reading: Reading) -> Pull:
        """Note what was read for a consumer as what it gets, and count it."""
        group, outcome = pull.settings, _outcome(pull, reading)
        after, broker_id = reading.next, self._broker_to_read(group, reading)
        if reading.count:
            self.given += reading.count
            whose = f"{pull.topic}@{group.name}"
            self._statistics.count(GROUP_GET_NUMS, whose, reading.count)
            self._statistics.count(GROUP_GET_SIZE, whose, len(reading.data))
        if self._catalog.is_slave and outcome is Outcome.MOVED:
            # A slave may be behind its master, whose offsets count (offsetCheckInSlave=false).
            outcome, after, broker_id = Outcome.AGAIN, pull.offset, group.broker_id
        pull.reading, pull.outcome, pull.next, pull.broker_id = reading, outcome, after, broker_id
        return pull

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
        return pull.hold_seconds > 0 and _outcome(pull, reading) is Outcome.NOTHING

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _subscription(
        self, group: str, topic: str, version: int, may_broadcast: bool
    ) -> Subscription:
        """Return what a group said in its heartbeat that it consumes of a topic."""
        online = self._clients.group(group)
        if online is None:
            raise Refusal(Reason.NO_SUBSCRIPTION, "the consumer's group info not exist")
        if online.told.model == "BROADCASTING" and not may_broadcast:
            raise Refusal(
                Reason.NOT_PERMITTED,
                f"the consumer group[{group}] can not consume by broadcast way",
            )
        found = online.subscription(topic)
        if found is None:
            raise Refusal(Reason.NO_SUBSCRIPTION, "the consumer's subscription not exist")
        if found.version < version:
            raise Refusal(Reason.OLD_SUBSCRIPTION, "the consumer's subscription not latest")
        return found


def _outcome(pull: Pull, reading: Reading) -> Outcome:
    if reading.status == "NO_MESSAGE_IN_QUEUE":
        return Outcome.MOVED if pull.offset else Outcome.NOTHING
    return _OUTCOMES[reading.status]
