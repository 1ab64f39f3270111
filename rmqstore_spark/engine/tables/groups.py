"""The consumer groups of a store, in `config/subscriptionGroup.json` as a broker keeps it.

See docs/format.md, "A store directory" (upstream: SubscriptionGroupManager). Fields that this
project does not know are preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.engine.tables.config_file import ConfigFile, ConfigTable
from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.configfiles import is_data_version, is_group_entry
from rmqstore_spark.layout.constants import group_fault, is_safe_group_name

_TABLE: Final = "subscriptionGroupTable"
_VERSION: Final = "dataVersion"

_MOST_NUMBER: Final = (1 << 31) - 1

_USUAL: Final[dict[str, Any]] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""What a broker writes for a group that it creates."""


@dataclass(frozen=True)
class ConsumerGroup:
    """The configuration of a consumer group.

    Attributes:
        name: its name.
        may_consume: whether it may consume at all.
        may_broadcast: whether each of its members may consume all messages.
        retry_queues: queues of its topic for messages that are consumed again; 0: they are not.
        retry_times: how often a message is consumed again.
        is_notified: whether its members are told when others come or go.
        broker_id: the `brokerId` of the broker that it reads from if slaves may be read.
        slow_broker_id: the same, as long as it is far behind.
    """

    name: str
    may_consume: bool
    may_broadcast: bool
    retry_queues: int
    retry_times: int
    is_notified: bool
    broker_id: int
    slow_broker_id: int

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> ConsumerGroup:
        """Take an entry of the file. What it does not have has its usual value."""

        def value(key: str) -> Any:
            found = raw.get(key)
            return _USUAL[key] if found is None else found

        return cls(
            name,
            may_consume=value("consumeEnable"),
            may_broadcast=value("consumeBroadcastEnable"),
            retry_queues=value("retryQueueNums"),
            retry_times=value("retryMaxTimes"),
            is_notified=value("notifyConsumerIdsChangedEnable"),
            broker_id=value("brokerId"),
            slow_broker_id=value("whichBrokerWhenConsumeSlowly"),
        )


class ConsumerGroups:
    """The consumer groups of a store. Thread-safe.

    Args:
        store: the store directory.
        clock: returns milliseconds since the epoch.
        most: the most groups that may be created.

    Raises:
        CorruptStoreError: the file is damaged, and so is its backup.
    """

    def __init__(self, store: str, clock: Callable[[], int], most: int) -> None:
        self._most = most
        self._file = file = ConfigFile(store, "subscriptionGroup")
        self._groups: dict[str, ConsumerGroup] = {}
        self._table: ConfigTable[Any] = ConfigTable(
            file, _TABLE, file.value.get(_TABLE, {}), clock, dict, self._take
        )
        self._take()

    def together(self) -> AbstractContextManager[None]:
        """Write all changes that the body makes with one write; see `TopicTable.together`."""
        return self._table.changing()

    def get(self, name: str) -> ConsumerGroup | None:
        """Return a group, or None if it does not exist."""
        return self._groups.get(name)  # without the lock, which is held while files are written

    def create(self, name: str) -> ConsumerGroup:
        """Create a group with the usual settings. An existing group stays as it is.

        Raises:
            OptionError: no broker accepts the name, or there are too many groups.
            StoreWriteError: the file could not be written; nothing has changed.
        """
        found = self.get(name)
        if found is not None:
            return found
        fault = group_fault(name, "consumer")
        if fault is not None:
            raise OptionError(fault)
        with self._table.changing():
            table = self._table.now
            if name not in table:
                if len(table) >= self._most:
                    raise OptionError(f"There are {self._most} consumer groups, the maximum.")
                table = {**table, name: {**_USUAL, "groupName": name}}
                self._table.set(table)
            return ConsumerGroup.from_json(name, table[name])

    def update(self, raw: Mapping[str, Any]) -> ConsumerGroup:
        """Change the settings of a group, or create it; settings that are not given stay.

        Args:
            raw: its `groupName`, and settings as a broker's file has them.

        Raises:
            OptionError: no broker accepts the name or a setting, or there are too many groups.
            StoreWriteError: the file could not be written; nothing has changed.
        """
        name = raw.get("groupName")
        if not isinstance(name, str):
            raise OptionError("groupName must be the name of a consumer group.")
        for key, usual in _USUAL.items():
            given = raw.get(key, usual)
            is_bound = type(given) is int and not 0 <= given <= _MOST_NUMBER
            if type(given) is not type(usual) or is_bound:
                kind = "true or false" if type(usual) is bool else f"from 0 to {_MOST_NUMBER}"
                raise OptionError(f"{key} must be {kind}.")
        with self._table.changing():
            self.create(name)
            table = self._table.now
            made = {**table[name], **{key: raw[key] for key in _USUAL if key in raw}}
            self._table.set({**table, name: made})
            return ConsumerGroup.from_json(name, made)

    def delete(self, name: str) -> None:
        """Delete a group, if it exists. Its offsets stay.

        Raises:
            StoreWriteError: the file could not be written; nothing has changed.
        """
        with self._table.changing():
            table = self._table.now
            if name in table:
                left = {key: held for key, held in table.items() if key != name}
                self._table.set(left)

    def names(self) -> list[str]:
        """Return the names of all groups, in order."""
        return sorted(self._groups)

    def to_json(self) -> dict[str, Any]:
        """Return the groups and the number of their last change, as a broker's file has them."""
        value = self._file.value
        return {
            _VERSION: value.get(_VERSION) or {"counter": 0, "timestamp": 0},
            _TABLE: value.get(_TABLE, {}),
        }

    def follow(self, value: Mapping[str, Any]) -> None:
        """Replace all groups by a master's, unless its version is the one that is held.

        Args:
            value: the content of the master's file. Groups that no broker accepts are left out.

        Raises:
            StoreWriteError: the file could not be written; nothing has changed.
        """
        version: Any = value.get(_VERSION)
        with self._table.changing():
            if version == self._file.value.get(_VERSION) and _TABLE in self._file.value:
                return
            table = {
                name: raw
                for name, raw in value[_TABLE].items()
                if isinstance(name, str) and is_safe_group_name(name) and is_group_entry(raw)
            }
            sound = version if is_data_version(version) else {}
            self._table.set(table, sound)

    def _take(self) -> None:
        self._groups = {
            name: ConsumerGroup.from_json(name, raw)
            for name, raw in self._table.held.items()
            if is_safe_group_name(name)
        }
