"""The consumer groups of a store, in `config/subscriptionGroup.json` as a broker keeps it.

See docs/format.md, "A store directory" (upstream: SubscriptionGroupManager). Fields that this
project does not know are preserved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import group_fault, is_safe_group_name

__all__ = ["ConsumerGroup", "ConsumerGroups"]

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
        """Parse an entry of the file. What is not of its type has its usual value."""

        def value(key: str) -> Any:
            found = raw.get(key)
            return found if type(found) is type(_USUAL[key]) else _USUAL[key]

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

    The file is read at the first use. So a damaged one does not keep a store from opening.

    Args:
        store: the store directory.
        clock: returns milliseconds since the epoch.
        most: the most groups that may be created.
    """

    def __init__(self, store: str, clock: Callable[[], int], most: int) -> None:
        self._store = store
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._opened: ConfigFile | None = None
        self._groups: dict[str, ConsumerGroup] = {}

    def get(self, name: str) -> ConsumerGroup | None:
        """Return a group, or None if it does not exist.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
        """
        if self._opened is None:
            self._file()
        return self._groups.get(name)  # without the lock, which is held while files are written

    def create(self, name: str) -> ConsumerGroup:
        """Create a group with the usual settings. An existing group stays as it is.

        Raises:
            OptionError: no broker accepts the name, or there are too many groups.
            CorruptStoreError: the file is damaged, and so is its backup.
            StoreWriteError: the file could not be written; nothing has changed.
        """
        found = self.get(name)
        if found is not None:
            return found
        fault = group_fault(name, "consumer")
        if fault is not None:
            raise OptionError(fault)
        file = self._file()
        with self._lock:
            if name in self._groups:
                return self._groups[name]
            if len(self._groups) >= self._most:
                raise OptionError(f"There are {self._most} consumer groups, the maximum.")
            table = file.value.get(_TABLE)
            made = {
                **(table if isinstance(table, dict) else {}),
                name: {**_USUAL, "groupName": name},
            }
            file.replace({**file.value, _VERSION: self._next_version(file), _TABLE: made})
            self._groups[name] = ConsumerGroup.from_json(name, _USUAL)
            return self._groups[name]

    def update(self, raw: Mapping[str, Any]) -> ConsumerGroup:
        """Change the settings of a group, or create it; settings that are not given stay.

        Args:
            raw: its `groupName`, and settings as a broker's file has them.

        Raises:
            OptionError: no broker accepts the name or a setting, or there are too many groups.
            CorruptStoreError: the file is damaged, and so is its backup.
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
        self.create(name)
        file = self._file()
        with self._lock:
            table = file.value[_TABLE]
            made = {**table[name], **{key: raw[key] for key in _USUAL if key in raw}}
            version = self._next_version(file)
            file.replace({**file.value, _VERSION: version, _TABLE: {**table, name: made}})
            found = self._groups[name] = ConsumerGroup.from_json(name, made)
            return found

    def delete(self, name: str) -> None:
        """Delete a group, if it exists. Its offsets stay.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
            StoreWriteError: the file could not be written; nothing has changed.
        """
        file = self._file()
        with self._lock:
            if name in self._groups:
                table = {key: held for key, held in file.value[_TABLE].items() if key != name}
                file.replace({**file.value, _VERSION: self._next_version(file), _TABLE: table})
                del self._groups[name]

    def names(self) -> list[str]:
        """Return the names of all groups, in order.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
        """
        self._file()
        with self._lock:
            return sorted(self._groups)

    def to_json(self) -> dict[str, Any]:
        """Return the groups and the number of their last change, as a broker's file has them.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
        """
        value = self._file().value
        version, table = value.get(_VERSION), value.get(_TABLE)
        return {
            _VERSION: version if isinstance(version, dict) else {"counter": 0, "timestamp": 0},
            _TABLE: table if isinstance(table, dict) else {},
        }

    def _next_version(self, file: ConfigFile) -> dict[str, int]:
        old = file.value.get(_VERSION)
        counter = old.get("counter") if isinstance(old, dict) else 0
        return {"counter": (counter if type(counter) is int else 0) + 1, "timestamp": self._clock()}

    def _file(self) -> ConfigFile:
        with self._lock:
            if self._opened is None:
                file = ConfigFile(self._store, "subscriptionGroup")
                self._groups = dict(_read(file.value.get(_TABLE)))
                self._opened = file
            return self._opened


def _read(table: Any) -> Iterator[tuple[str, ConsumerGroup]]:
    for name, raw in table.items() if isinstance(table, dict) else ():
        if isinstance(raw, dict) and is_safe_group_name(name):
            yield name, ConsumerGroup.from_json(name, raw)
