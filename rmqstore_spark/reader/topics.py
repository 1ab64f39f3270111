"""The topics of a store, and what in its folders is none."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rmqstore_spark.files.base import Skipped
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.constants import is_system_topic

__all__ = ["Skips", "Topic", "read_topics", "topics_with_queues"]

_log = logging.getLogger(__name__)

_TOLD: Final = 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class Topic:
    """A topic, as its queues' folders and `config/topics.json` tell.

    Attributes:
        name: its name.
        queue_ids: the queues that have files, ascending.
        read_queue_nums: as configured; None where topics.json does not name the topic.
        write_queue_nums: likewise.
        perm: 4 readable + 2 writable + 1 inherited; likewise.
        order: whether the topic is an ordered one; likewise.
        is_system: it is the broker's own, or a group's retries.
    """

    name: str
    queue_ids: tuple[int, ...]
    read_queue_nums: int | None
    write_queue_nums: int | None
    perm: int | None
    order: bool | None
    is_system: bool


def read_topics(directory: StoreDirectory) -> list[Topic]:
    """The topics that have queues, and those that are only configured, by name.

    Raises:
        CorruptStoreError: `topics.json` does not parse, nor does its `.bak`.
    """
    return _topics(directory, _settings(directory.config("topics.json")))


def topics_with_queues(directory: StoreDirectory) -> list[Topic]:
    """The topics that have queues, by name, without their settings: `topics.json` is not read."""
    return _topics(directory, {})


def _topics(directory: StoreDirectory, settings: dict[str, dict[str, Any]]) -> list[Topic]:
    queues = directory.topology.queues
    return [
        Topic(
            name,
            queues.get(name, ()),
            _of_type(int, settings.get(name, {}).get("readQueueNums")),
            _of_type(int, settings.get(name, {}).get("writeQueueNums")),
            _of_type(int, settings.get(name, {}).get("perm")),
            _of_type(bool, settings.get(name, {}).get("order")),
            is_system_topic(name),
        )
        for name in sorted({*queues, *settings})
    ]


def _settings(config: Any) -> dict[str, dict[str, Any]]:
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    pairs = table.items() if isinstance(table, dict) else ()
    return {str(name): values for name, values in pairs if isinstance(values, dict)}


def _of_type(kind: type[_T], value: object) -> _T | None:
    """A value of a configuration file, None where it is not of the kind it should be."""
    return value if type(value) is kind else None


class Skips:
    """Says in the log what of a store's folders is passed over, each thing once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, directory: StoreDirectory, strays: Iterable[Skipped] = ()) -> None:
        """Log what was not logged yet: a few by name, of more only how many.

        Args:
            directory: whose topics and queues.
            strays: what lies in the folders of the log.
        """
        skipped = [*directory.topology.skipped, *strays]
        if directory.topology.queues:
            skipped += [
                Skipped(
                    topic, "its batch queues (RocketMQ 5) are not read; a scan gives the records"
                )
                for topic in directory.batch_queues().queues
            ]
        self.tell_of(skipped)

    def tell_of(self, skipped: Iterable[Skipped]) -> None:
        """Log those that were not logged yet."""
        new = [item for item in skipped if item.path not in self._told]
        self._told.update(item.path for item in new)
        for item in new[:_TOLD]:
            _log.warning("Skipped %s: %s.", item.path, item.reason)
        if len(new) > _TOLD:
            _log.warning("Skipped %d more things that are no part of a store.", len(new) - _TOLD)
