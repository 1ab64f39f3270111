"""Shows the progress of consumer groups and delay levels, as the broker recorded it.

The files are `config/consumerOffset.json` and `config/delayOffset.json` (docs/format.md, "A store
directory" and "Delayed messages"; upstream: ConsumerOffsetManager, ScheduleMessageService). A
file of another shape is damage (`files.configfiles`). What else cannot be is skipped and logged:
names that no broker accepts, and offsets of delay levels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.files.configfiles import DELAY_OFFSETS, impossible_delay
from rmqstore_spark.files.systems.base import join
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC, is_safe_folder_name

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

_log = logging.getLogger(__name__)

_MAX_SHOWN: Final = 300  # characters of a skipped entry in the log line
_TOPIC_GROUP_SEPARATOR: Final = "@"
_CONSUMER_OFFSETS: Final = "consumerOffset.json"


@dataclass(frozen=True, order=True)
class GroupOffset:
    """The progress of a consumer group in one queue.

    Attributes:
        offset: the next queue offset that the group will consume.
        max_offset: one past the queue's last message; 0 if the store does not have the queue.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Number of messages that the group has not consumed yet."""
        return max(0, self.max_offset - self.offset)


@dataclass(frozen=True, order=True)
class DelayProgress:
    """The progress of the delivery of one delay level.

    Attributes:
        level: 1 to 18, unless the broker is configured with more.
        queue_id: the queue of SCHEDULE_TOPIC_XXXX where the messages wait.
        offset: the next queue offset to deliver.
        max_offset: one past the queue's last message.
    """

    level: int
    queue_id: int
    offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Number of messages that still wait."""
        return max(0, self.max_offset - self.offset)


def group_offsets(
    store: Store, ends: Mapping[tuple[str, int], int] | None = None
) -> list[GroupOffset]:
    """Return the progress of each consumer group in each queue.

    Args:
        store: the store whose `config/consumerOffset.json` is read.
        ends: one past the last message of each queue, by topic and queueId, if they are known.
            None: the queues are looked up.

    Returns:
        Offsets by group, topic and queue. Groups without offsets are left out.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON of the right shape.
    """
    skipped = _Skipped(store, _CONSUMER_OFFSETS)
    latest = _latest(store) if ends is None else lambda topic, queue: ends.get((topic, queue), 0)
    found = []
    for name, offsets in _table(store, _CONSUMER_OFFSETS, "offsetTable").items():
        # The broker does not accept a name with more than one "@" either.
        topic, _, group = name.partition(_TOPIC_GROUP_SEPARATOR)
        if _TOPIC_GROUP_SEPARATOR in group or not all(map(is_safe_folder_name, (topic, group))):
            skipped.add(f"{name!r} is not TOPIC@GROUP")
        else:
            found += [
                GroupOffset(group, topic, int(queue_id), offset, latest(topic, int(queue_id)))
                for queue_id, offset in offsets.items()
                if offset >= 0  # -1 is none
            ]
    skipped.report()
    return sorted(found)


def group_offset(store: Store, group: str, topic: str, queue_id: int) -> int | None:
    """Return the offset of a consumer group in one queue; None if it has none.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON of the right shape.
    """
    table = _table(store, _CONSUMER_OFFSETS, "offsetTable")
    offsets = table.get(f"{topic}{_TOPIC_GROUP_SEPARATOR}{group}", {})
    found = {int(number): offset for number, offset in offsets.items() if offset >= 0}
    return found.get(queue_id)


def offsets_past_end(
    table: Mapping[str, Mapping[Any, int]],
    ends: Mapping[tuple[str, int], int],
    topics: Container[str],
) -> list[GroupOffset]:
    """Return the offsets of consumer groups that lie past the ends of their queues.

    Args:
        table: offsets by queueId, by `TOPIC@GROUP`, as `config/consumerOffset.json` has them.
        ends: one past the last message of each queue, by topic and queueId.
        topics: topics that exist, also without a queue that has had a message: such a queue ends at
            0. Other topics without a queue do not exist, and say nothing.
    """
    known = {topic for topic, _ in ends}
    found = []
    for name, offsets in table.items():
        topic, _, group = name.partition(_TOPIC_GROUP_SEPARATOR)
        if topic not in known and topic not in topics:
            continue
        for queue_id, offset in offsets.items():
            end = ends.get((topic, int(queue_id)), 0)
            if offset > end:
                found.append(GroupOffset(group, topic, int(queue_id), offset, end))
    return sorted(found)


def delay_progress(store: Store) -> list[DelayProgress]:
    """Return the progress of the delivery of each delay level, by level.

    Args:
        store: the store whose `config/delayOffset.json` is read. Levels that have a queue are
            always included. Those without a recorded offset start at 0.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON of the right shape.
    """
    skipped = _Skipped(store, DELAY_OFFSETS)
    latest = _latest(store)
    offsets = dict[int, int]()
    for level, offset in _table(store, DELAY_OFFSETS, "offsetTable").items():
        fault = impossible_delay(level, offset)
        if fault:
            skipped.add(fault)
        else:
            offsets[int(level)] = offset
    for queue_id in store.directory.topology.queues.get(SCHEDULE_TOPIC, ()):
        offsets.setdefault(queue_id + 1, 0)  # where a broker starts
    skipped.report()
    return [
        DelayProgress(level, level - 1, offset, latest(SCHEDULE_TOPIC, level - 1))
        for level, offset in sorted(offsets.items())
    ]


class _Skipped:
    """Counts the entries that are skipped in one file, to log them in one line."""

    def __init__(self, store: Store, name: str) -> None:
        self._path = join(store.path, "config", name)
        self._count = 0
        self._first = ""

    def add(self, what: str) -> None:
        self._first = self._first or what[:_MAX_SHOWN]
        self._count += 1

    def report(self) -> None:
        if self._count:
            _log.warning(
                "Skipped %d entries of %s. The first: %s.", self._count, self._path, self._first
            )


def _table(store: Store, file: str, name: str) -> dict[str, Any]:
    """Return a table of a configuration file; empty without a file."""
    table: dict[str, Any] = (store.directory.config(file) or {}).get(name, {})
    return table


def _latest(store: Store) -> Callable[[str, int], int]:
    """Return a function for one past a queue's last message; 0 if the queue does not exist."""
    queues = store.directory.topology.queues

    def latest(topic: str, queue_id: int) -> int:
        if queue_id not in queues.get(topic, ()):
            return 0
        return store.queue(topic, queue_id).max_offset

    return latest
