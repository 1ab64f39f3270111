"""Lists the topics of a store, and logs what its folders hold besides.

Of a store without ConsumeQueues it finds the queues in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.base import Skipped
from rmqstore_spark.layout.constants import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_NOT_TYPE,
    is_system_topic,
)

_log = logging.getLogger(__name__)

_TOLD: Final = 20


@dataclass(frozen=True)
class Topic:
    """A topic, from the folders of its queues and from `config/topics.json`.

    Attributes:
        name: its name.
        queue_ids: the queues that have files, ascending.
        read_queue_nums: as configured; None if topics.json does not name the topic.
        write_queue_nums: as configured, or None.
        perm: 4 readable + 2 writable + 1 inherited, or None.
        order: whether the topic is ordered, or None.
        is_system: whether the topic belongs to the broker, or holds the retries of a group.
    """

    name: str
    queue_ids: tuple[int, ...]
    read_queue_nums: int | None
    write_queue_nums: int | None
    perm: int | None
    order: bool | None
    is_system: bool


def read_topics(directory: StoreDirectory) -> list[Topic]:
    """List the topics that have queues or are configured, sorted by name.

    Raises:
        CorruptStoreError: neither `topics.json` nor its `.bak` is JSON of the right shape.
    """
    return _topics(directory, (directory.config("topics.json") or {}).get("topicConfigTable", {}))


def topics_with_queues(directory: StoreDirectory) -> list[Topic]:
    """List the topics that have queues, sorted by name. `topics.json` is not read."""
    return _topics(directory, {})


def _topics(directory: StoreDirectory, settings: dict[str, dict[str, Any]]) -> list[Topic]:
    queues = directory.topology.queues
    return [
        Topic(
            name,
            queues.get(name, ()),
            settings.get(name, {}).get("readQueueNums"),
            settings.get(name, {}).get("writeQueueNums"),
            settings.get(name, {}).get("perm"),
            settings.get(name, {}).get("order"),
            is_system_topic(name),
        )
        for name in sorted({*queues, *settings})
    ]


class LogQueue(NamedTuple):
    """The messages of one queue in the log.

    Attributes:
        min_offset: least queue offset of the messages.
        max_offset: one past the greatest queue offset.
        messages: number of messages.
    """

    min_offset: int
    max_offset: int
    messages: int


LOG_QUEUE_COLUMNS: Final = ("topic", "queueId", "queueOffset", "sysFlag")
"""The columns that `queues_in_log` needs."""


def queues_in_log(scanned: Iterable[pa.RecordBatch]) -> Mapping[tuple[str, int], LogQueue]:
    """Return the queues that a broker would build from a log, by topic and queueId.

    Prepared and rolled-back messages do not count. Light queues are left out: each message counts
    once, under its own topic.

    Args:
        scanned: all records of the log, with LOG_QUEUE_COLUMNS.
    """
    found: dict[tuple[str, int], LogQueue] = {}
    for batch in scanned:
        kinds = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
        queued = np.isin(kinds, (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE))
        table = pa.Table.from_batches([batch.filter(pa.array(queued))])
        sums = table.group_by(["topic", "queueId"]).aggregate(
            [("queueOffset", "min"), ("queueOffset", "max"), ("queueOffset", "count")]
        )
        for row in sums.to_pylist():
            key = row["topic"], row["queueId"]
            first, last = row["queueOffset_min"], row["queueOffset_max"] + 1
            known = found.get(key, LogQueue(first, last, 0))
            found[key] = LogQueue(
                min(known.min_offset, first),
                max(known.max_offset, last),
                known.messages + row["queueOffset_count"],
            )
    return {key: found[key] for key in sorted(found)}


class Skips:
    """Logs the files and folders that are skipped in a store, each of them once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, directory: StoreDirectory, strays: Iterable[Skipped] = ()) -> None:
        """Log what was skipped and not logged yet: the first by name, the others as a count.

        Args:
            directory: the store directory whose topics and queues were listed.
            strays: what was skipped in the folders of the log.
        """
        skipped = [*directory.topology.skipped, *strays]
        if directory.topology.queues:
            skipped += [
                Skipped(
                    topic, "batch queues (RocketMQ 5) are not supported; a scan reads their records"
                )
                for topic in directory.batch_queues().queues
            ]
        self.tell_of(skipped)

    def tell_of(self, skipped: Iterable[Skipped]) -> None:
        """Log the items that were not logged yet."""
        new = [item for item in skipped if item.path not in self._told]
        self._told.update(item.path for item in new)
        for item in new[:_TOLD]:
            _log.warning("Skipped %s: %s.", item.path, item.reason)
        if len(new) > _TOLD:
            _log.warning(
                "Skipped %d more files and folders that are not part of a store.", len(new) - _TOLD
            )
