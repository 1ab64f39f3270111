"""Administers consumer groups (upstream: AdminBrokerProcessor, Broker2Client)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.clients import Clients, Group
from rmqstore_spark.broker.core.consumers.offsets import NamedQueue
from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.broker.core.statistics import Statistics
from rmqstore_spark.broker.core.subscriptions import Subscription
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.topics import TopicConfig
from rmqstore_spark.errors import OptionError, StoreWriteError
from rmqstore_spark.layout.constants import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX

_log = logging.getLogger(__name__)

_END: Final = -1
"""A time that means the end of the queues."""


class Deletion(NamedTuple):
    """A group that an administrator wants deleted, and whether its offsets are removed too."""

    name: str
    removes_offsets: bool


class GroupTopic(NamedTuple):
    """A group, and a topic that it consumes; "" for all."""

    group: str
    topic: str


class QueueProgress(NamedTuple):
    """How far a group is in a queue.

    Attributes:
        queue: the queue.
        end: one past its last message.
        offset: from which on the group consumes it.
        stored: when the last message that it has consumed was stored, in milliseconds; 0: none.
    """

    queue: NamedQueue
    end: int
    offset: int
    stored: int


class ConsumeStats(NamedTuple):
    """How far a group is in its queues, and how many messages it gets a second."""

    rate: float
    queues: Sequence[QueueProgress]


class QueueSpan(NamedTuple):
    """Times of messages of a queue, in milliseconds; -1 for a message that is not there.

    Attributes:
        queue: the queue.
        first, last: of all messages.
        consumed: of the last one that the group has consumed.
        delay: how old the first one is that it has not.
    """

    queue: NamedQueue
    first: int
    last: int
    consumed: int
    delay: int


class ResetAsked(NamedTuple):
    """Where an administrator wants a group to begin.

    Attributes:
        group, topic: the group, and the topic.
        timestamp: the time, in milliseconds; -1: the end of the queues.
        is_forced: also where the group would pass over messages.
    """

    group: str
    topic: str
    timestamp: int
    is_forced: bool


class Reset(NamedTuple):
    """Where the members of a group begin in the queues of a topic.

    Attributes:
        asked: what was wanted.
        offsets: by the number of the queue.
        group: the group, with its members.
    """

    asked: ResetAsked
    offsets: dict[int, int]
    group: Group


class GroupAdministration:
    """Administers consumer groups. What reads queues belongs to one thread.

    Args:
        store: the store.
        catalog: its topics and groups.
        clients: who is connected.
        reader: of its queues.
        statistics: know how much was consumed.
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

    # ---- changes

    def update(self, groups: Iterable[dict[str, Any]]) -> None:
        """Create or change groups.

        Args:
            groups: the settings of each, as a broker's file has them.

        Raises:
            Refusal: they cannot be, or not here.
        """
        self._catalog.require_master()
        try:
            for group in groups:
                self._store.groups.update(group)
        except OptionError as error:
            raise Refusal(Reason.WRONG, str(error)) from error
        except StoreWriteError as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error

    def delete(self, asked: Deletion, peer: str) -> Deletion:
        """Delete a group, but not its offsets: the result goes to `forget_offsets`.

        Args:
            asked: which.
            peer: address of who wants it.

        Raises:
            Refusal: it cannot be deleted, or not here.
        """
        self._catalog.require_master()
        try:
            self._store.groups.delete(asked.name)
        except StoreWriteError as error:
            raise Refusal(Reason.UNAVAILABLE, str(error)) from error
        _log.info("%s deleted the group %s.", escaped(peer), escaped(asked.name))
        return asked

    def forget_offsets(self, deleted: Iterable[Deletion]) -> None:
        """Remove the offsets of groups that were deleted, where that was wanted.

        Raises:
            StoreWriteError: the file could not be written.
        """
        gone = [each.name for each in deleted if each.removes_offsets]
        if gone:
            self._store.consumer_offsets.forget_groups(gone)

    # ---- questions

    def config(self, name: str) -> dict[str, Any]:
        """Return the settings of a group, as a broker's file has them.

        Raises:
            Refusal: there is none.
        """
        self._catalog.group(name)  # which creates it if that is allowed, as a broker does
        found: dict[str, Any] | None = self._store.groups.to_json()["subscriptionGroupTable"].get(
            name
        )
        if found is None:
            raise Refusal(Reason.NO_GROUP, "No group in this broker")
        return found

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        return sorted(self._topics_by_group().get(group, ()))

    def consumers_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic, or whose members consume it."""
        groups = {group for group, topics in self._topics_by_group().items() if topic in topics}
        return sorted(groups | self._clients.consumers_of(topic))

    def subscription(self, asked: GroupTopic) -> Subscription | None:
        """Return what a group consumes of a topic; None if nothing, or if it is not connected."""
        online = self._clients.group(asked.group)
        return None if online is None else online.subscription(asked.topic)

    def progress(self, asked: GroupTopic) -> ConsumeStats:
        """Return how far a group is in the queues of its topics, or of one of them."""
        group, only = asked
        rate, now = 0.0, time.monotonic()
        queues: list[QueueProgress] = []
        for topic in self.topics_of(group):
            found = self._queues(group, topic) if not only or topic == only else []
            if found:
                queues += found
                rate += self._statistics.consumed(topic, group, now)
        return ConsumeStats(rate, queues)

    def progress_of_all(self) -> list[tuple[str, list[ConsumeStats]]]:
        """Return how far all groups are, in each of their topics."""
        consumed, now = self._topics_by_group(), time.monotonic()
        told = []
        for group in self._store.groups.names():
            parts = []
            for topic in sorted(consumed.get(group, ())):
                queues = self._queues(group, topic)
                rate = self._statistics.consumed(topic, group, now) if queues else 0.0
                parts.append(ConsumeStats(rate, queues))
            told.append((group, parts))
        return told

    def _topics_by_group(self) -> dict[str, set[str]]:
        """Return the topics in which groups have offsets, by group."""
        found: dict[str, set[str]] = {}
        for name in self._store.consumer_offsets.table():
            topic, separator, group = name.rpartition("@")
            if separator:
                found.setdefault(group, set()).add(topic)
        return found

    def _queues(self, group: str, topic: str) -> list[QueueProgress]:
        """Return how far a group is in the queues of a topic, unless it no longer consumes it."""
        config = self._store.topics.get(topic)
        online = self._clients.group(group)
        own = topic in (RETRY_GROUP_TOPIC_PREFIX + group, DLQ_GROUP_TOPIC_PREFIX + group)
        if config is None or (online is not None and not own and not online.subscription(topic)):
            return []
        found = []
        for queue_id in range(config.read_queue_nums):
            offset = max(0, self._store.consumer_offsets.get(group, topic, queue_id))
            stored = self._reader.stored_at(topic, queue_id, offset - 1) if offset else 0
            end = max(0, self._reader.range(topic, queue_id)[1])
            found.append(QueueProgress(NamedQueue(topic, queue_id), end, offset, max(0, stored)))
        return found

    def spans(self, asked: GroupTopic) -> list[QueueSpan]:
        """Return of which times a group has messages left in the queues of a topic.

        Raises:
            Refusal: there is no such topic.
        """
        config = self._topic(asked.topic, Reason.NO_TOPIC)
        now = self._store.clock()
        return [
            self._span(asked.group, NamedQueue(asked.topic, queue_id), now)
            for queue_id in range(config.write_queue_nums)
        ]

    def _topic(self, name: str, reason: Reason) -> TopicConfig:
        found = self._store.topics.get(name)
        if found is None:
            raise Refusal(reason, f"topic[{shown(name)}] not exist")
        return found

    def _span(self, group: str, queue: NamedQueue, now: int) -> QueueSpan:
        least, most = self._reader.range(*queue)
        offset = max(least, self._store.consumer_offsets.get(group, *queue))
        first, last, consumed, due = (
            self._reader.stored_at(*queue, at) if least <= at < most else -1
            for at in (least, most - 1, offset - 1, offset)
        )
        delay = now - due if due >= 0 else 0
        return QueueSpan(queue, first, last, consumed if offset > least else first, delay)

    # ---- resetting

    def reset(self, asked: ResetAsked, peer: str) -> Reset:
        """Say where the members of a group begin. Who tells them so has them report it.

        Args:
            asked: what is wanted.
            peer: address of who wants it.

        Raises:
            Refusal: there is no such topic, or the group has not consumed it, or is not connected.
        """
        group, topic, timestamp, is_forced = asked
        config = self._topic(topic, Reason.WRONG)
        offsets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            held = self._store.consumer_offsets.get(group, topic, queue_id)
            if held < 0:
                raise Refusal(
                    Reason.WRONG,
                    f"THe consumer group <{shown(group)}> not exist: it has no progress in queue "
                    f"{queue_id} of the topic yet",
                )
            if timestamp == _END:
                wanted = self._reader.range(topic, queue_id)[1]
            else:
                wanted = self._reader.offset_near(topic, queue_id, timestamp)
            offsets[queue_id] = max(0, wanted) if is_forced or wanted < held else held
        online = self._clients.group(group)
        if online is None:
            raise Refusal(
                Reason.NOT_CONNECTED,
                f"Consumer not online, so can not reset offset, Group: {shown(group)} "
                f"Topic: {shown(topic)} Timestamp: {timestamp}",
            )
        _log.info(
            "%s had the offsets of the group %s in the topic %s reset by its consumers.",
            escaped(peer), escaped(group), escaped(topic),
        )  # fmt: skip
        return Reset(asked, offsets, online)
