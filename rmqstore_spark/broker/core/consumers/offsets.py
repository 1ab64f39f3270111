"""Answers questions about offsets: those of queues, and those of consumer groups.

Upstream: ConsumerManageProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.layout.constants import is_safe_group_name

_log = logging.getLogger(__name__)

_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class NamedQueue(NamedTuple):
    """A queue that a client names; there may be none."""

    topic: str
    queue_id: int


class GroupQueue(NamedTuple):
    """A queue, and a group that consumes it."""

    group: str
    queue: NamedQueue


class Report(NamedTuple):
    """The offset up to which a group has consumed a queue; negative if it has not begun."""

    group: str
    queue: NamedQueue
    offset: int


class Offsets:
    """Answers questions about offsets. Used by one thread, but for `save`.

    Args:
        store: the store.
        catalog: its topics and groups.
        reader: of its queues.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog, reader: QueueReader) -> None:
        self._store = store
        self._table = store.consumer_offsets
        self._catalog = catalog
        self._reader = reader

    def save(self) -> None:
        """Write the offsets that consumers have reported. May be called in any thread.

        Raises:
            Refusal: they could not be written; the next time does it.
        """
        try:
            self._table.save()
        except (RmqStoreError, OSError) as error:
            text = f"the progress of consumer groups could not be written: {error}"
            raise Refusal(Reason.WRONG, text) from error

    def save_if_possible(self) -> None:
        """Write the offsets that consumers have reported; log it if that fails."""
        try:
            self.save()
        except Refusal as error:
            _log.warning("At present, %s", error.remark)

    def of_group(self, asked: GroupQueue) -> int:
        """Return the offset from which on a group consumes a queue.

        Raises:
            Refusal: it has none, and the consumer decides where it begins.
        """
        topic, queue_id = asked.queue
        offset = self._table.get(asked.group, topic, queue_id)
        if offset < 0:
            least, _most = self._reader.range(topic, queue_id)
            if least > 0 or not self._reader.is_resident(topic, queue_id):
                raise Refusal(Reason.NOT_FOUND, _NOT_FOUND)
            offset = 0
        return offset

    def report(self, told: Report) -> None:
        """Take note of how far a group is.

        Raises:
            Refusal: too many groups have offsets.
        """
        group, (topic, queue_id), offset = told
        # JavaScript's clients send -1 for what they have not read yet. RocketMQ stores offsets of
        # topics, queues and groups that do not exist too: nobody can ask for them.
        config = self._store.topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        is_known = 0 <= queue_id < queues and is_safe_group_name(group)
        if offset < 0 or not is_known or self._catalog.is_slave:
            return
        if not self._table.report(group, topic, queue_id, offset):
            raise Refusal(Reason.BUSY, "too many groups have offsets; delete some topics")

    def end(self, queue: NamedQueue) -> int:
        """Return the offset one past the last message of a queue."""
        return self._reader.range(*queue)[1]

    def begin(self, queue: NamedQueue) -> int:
        """Return the offset of the first message of a queue."""
        return self._reader.range(*queue)[0]

    def near(self, queue: NamedQueue, timestamp: int) -> int:
        """Return the offset where the messages of a time begin, in milliseconds."""
        return self._reader.offset_near(*queue, timestamp)

    def first_stored(self, queue: NamedQueue) -> int:
        """Return when the first message of a queue was stored, in milliseconds, or -1."""
        return self._reader.stored_at(*queue, self.begin(queue))
