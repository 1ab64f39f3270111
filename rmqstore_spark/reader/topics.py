"""Lists the topics of a store, and logs what its folders hold besides."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.files.base import Skipped
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.constants import is_system_topic

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
