"""The tables of a slave that follow those of its master's broker.

A slave takes the master's topics and subscription groups when their `dataVersion` has changed, and
the progress of consumer groups and delays always. (Upstream: SlaveSynchronize.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.engine.tables.topics import TopicTable
from rmqstore_spark.layout.constants import is_safe_group_name

__all__ = ["FollowedTables"]

_VERSION: Final = "dataVersion"
_GROUPS: Final = "subscriptionGroupTable"
_OFFSETS: Final = "offsetTable"
_MOST_LEVEL: Final = 1 << 10


class FollowedTables:
    """The tables of a slave. Used by one thread at a time; others may read the tables meanwhile.

    What the master sends is not trusted: names that no broker accepts and values that are none are
    left out.

    Args:
        store: the store directory.
        topics, offsets: the store's own tables.
    """

    def __init__(self, store: str, topics: TopicTable, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets

    def take_topics(self, value: Any) -> None:
        """Take the content of a master's `topics.json`; see `TopicTable.follow`."""
        if isinstance(value, dict):
            self._topics.follow(value)

    def take_consumer_offsets(self, value: Any) -> None:
        """Take the content of a master's `consumerOffset.json`; see `ConsumerOffsets.follow`."""
        table = value.get(_OFFSETS) if isinstance(value, dict) else None
        if isinstance(table, dict):
            self._offsets.follow(table)

    def take_delay_offsets(self, value: Any) -> None:
        """Take the content of a master's `delayOffset.json`.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
            StoreWriteError: the file could not be written.
        """
        table = value.get(_OFFSETS) if isinstance(value, dict) else None
        if not isinstance(table, dict):
            return
        levels = {
            int(level): offset
            for level, offset in table.items()
            if isinstance(level, str) and level.isdecimal() and len(level) < 5
            if int(level) < _MOST_LEVEL and type(offset) is int and offset >= 0
        }
        file = ConfigFile(self._store, "delayOffset")
        held = file.value.get(_OFFSETS)
        if not isinstance(held, dict) or held != {str(k): at for k, at in levels.items()}:
            file.replace({_OFFSETS: levels})

    def take_groups(self, value: Any) -> None:
        """Take the content of a master's `subscriptionGroup.json`.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
            StoreWriteError: the file could not be written.
        """
        table = value.get(_GROUPS) if isinstance(value, dict) else None
        if not isinstance(table, dict):
            return
        file = ConfigFile(self._store, "subscriptionGroup")
        if value.get(_VERSION) != file.value.get(_VERSION) or _GROUPS not in file.value:
            file.replace({_VERSION: _version(value), _GROUPS: _named(table)})


def _version(value: Mapping[str, Any]) -> Any:
    found = value.get(_VERSION)
    return found if isinstance(found, dict) else {}


def _named(table: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the entries of a table of groups that have a valid name."""
    return {
        name: entry
        for name, entry in table.items()
        if isinstance(name, str) and is_safe_group_name(name) and isinstance(entry, dict)
    }
