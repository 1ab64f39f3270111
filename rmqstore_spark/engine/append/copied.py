"""Records of a log that is a copy of another one, on their way into topics, queues and index.

They have the places and offsets that the log's own master gave them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.recovery.redispatch import LogBlock, QueueFeed, Run
from rmqstore_spark.engine.tables.topics import MOST_QUEUES, TopicConfig, TopicTable
from rmqstore_spark.errors import OptionError, RefusedError, ReplicationError, StoreWriteError
from rmqstore_spark.layout.constants import (
    FILLER_TOPIC,
    is_safe_topic_name,
    is_system_topic,
    is_topic_of_group,
)
from rmqstore_spark.layout.record.block import index_hashes
from rmqstore_spark.layout.spans import I4, I8

_log = logging.getLogger(__name__)

_MOST_QUEUES_HELD: Final = 1 << 18
"""Each queue takes a folder and a file, and a foreign master decides how many there are."""


class Copied:
    """Records that were copied from a master.

    Args:
        part: the records.
        feed: finds their places in the queues.
    """

    def __init__(self, part: LogBlock, feed: QueueFeed) -> None:
        self._part = part
        self._feed = feed
        self.size = int(part.block.sizes.sum())
        self.store_timestamp = last_time(part)
        self.end = int(part.physical_offset[-1]) + int(part.block.sizes[-1])

    @cached_property
    def _runs(self) -> list[Run]:
        # Found once, also if they have to be written again.
        return list(self._feed.runs(self._part))

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries. A queue that begins again loses its older entries."""
        for run in self._runs:
            if run.first == 0 and queues.max_offset(run.topic, run.queue_id):
                queues.restart(run.topic, run.queue_id)
            queues.append(*run)

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        block = self._part.block
        hashes, rows = index_hashes(block.data, block.starts, block.sizes)
        return hashes, self._part.physical_offset[rows], self._part.records.store_timestamp[rows]


def feed_of(store: OpenStore, *, is_group: bool = False) -> QueueFeed:
    """Return a feed for what follows in a store's log; see `QueueFeed`."""
    return QueueFeed(
        store.queues,
        store.config.delays,
        lambda *route: keeps_queue(store, *route),
        log_begin=store.log.min_offset,
        deleted=store.deleted.end,
        is_group=is_group,
    )


def make_topics(
    store: OpenStore, routes: Iterable[tuple[str, int]], end: int, queues_of_new: int = 1
) -> None:
    """Create the topics of records, and give them as many queues as the records need.

    Args:
        store: the open store.
        routes: topics and queueIds of the records.
        end: physical offset behind them.
        queues_of_new: how many queues a client's new topic gets at least.

    Raises:
        ReplicationError: a topic cannot be kept; all others are.
        RefusedError: a topic cannot be written for now.
    """
    least: dict[str, int] = {}
    topics = store.topics
    for name, queue_id in routes:
        is_deleted = end <= store.deleted.end(name)
        if name == FILLER_TOPIC:
            continue
        if queue_id >= 0 and is_safe_topic_name(name) and not is_deleted:
            least[name] = max(least.get(name, 0), min(queue_id + 1, MOST_QUEUES))
    if all(_has_queues(topics.get(name), count) for name, count in least.items()):
        return
    refused: OptionError | None = None
    try:
        with topics.together():  # the master's table does not take one away meanwhile
            for name, count in least.items():
                try:
                    _make_topic(topics, name, count, queues_of_new)
                except OptionError as error:
                    refused = refused or error
    except StoreWriteError as error:
        text = f"A topic of the master cannot be created: {error}"
        raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error
    if refused is not None:
        text = f"The master has a topic that cannot be kept: {refused}"
        raise ReplicationError(text) from refused


def _has_queues(topic: TopicConfig | None, count: int) -> bool:
    return topic is not None and min(topic.read_queue_nums, topic.write_queue_nums) >= count


def _make_topic(topics: TopicTable, name: str, count: int, queues_of_new: int) -> None:
    topic = topics.content.get(name)
    if topic is None:
        if not (is_system_topic(name) or is_topic_of_group(name)):
            count = max(count, queues_of_new)
        topics.create(name, count, count)
    elif not _has_queues(topic, count):
        read = max(topic.read_queue_nums, count)
        write = max(topic.write_queue_nums, count)
        topics.update(name, read_queue_nums=read, write_queue_nums=write)


def keeps_queue(store: OpenStore, topic: str, queue_id: int, _slot: int) -> bool:
    """Return whether a store has room for a queue that it does not have yet."""
    if len(store.queues) < _MOST_QUEUES_HELD:
        return True
    _log.error(
        "The queue %s/%d is not kept: the store has %d queues.", topic, queue_id, _MOST_QUEUES_HELD,
    )  # fmt: skip
    return False


def last_time(part: LogBlock) -> int:
    """Return the storeTimestamp of the last of some records."""
    return int(part.records.store_timestamp[-1])
