"""The tables of a slave that follow those of its master's broker.

A slave takes the master's topics and subscription groups when their `dataVersion` has changed, and
the progress of consumer groups always. It deletes topics that the master has deleted. It takes the
progress of delays and of transactions when its log has what that counts as done: a slave that
becomes the master would not deliver it, or end it. (Upstream: SlaveSynchronize, which deletes no
queues and looks at no log.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rmqstore_spark.engine.role import Promotion, Role
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.engine.tables.groups import ConsumerGroups
from rmqstore_spark.engine.tables.topics import TopicTable
from rmqstore_spark.files.configfiles import impossible_delay
from rmqstore_spark.layout.constants import TRANS_GROUP

DELETED_TOPICS: Final = "deletedTopics"
"""A store process tells `StoreWriter.deleted_topics` beside its topics. Others pass over that."""

PROMOTIONS: Final = "promotions"
"""A store process tells `Role.promotions` there, if there are any. Others pass over that."""

_VERSION: Final = "dataVersion"
_TOPICS: Final = "topicConfigTable"
_GROUPS: Final = "subscriptionGroupTable"
_OFFSETS: Final = "offsetTable"
_LOG_OFFSET: Final = "logOffset"
_MOST_LEVEL: Final = 1 << 10


@dataclass(frozen=True)
class _Progress:
    """Progress of what is in a master's log.

    Args:
        table: what it is.
        end: where the log ends of which it counts messages.
    """

    table: Mapping[str, Any]
    end: int


class _Later:
    """Holds progress until the store's log has what that counts."""

    def __init__(self) -> None:
        self._held: _Progress | None = None

    def due(self, told: _Progress | None, log_end: int) -> Mapping[str, Any] | None:
        """Return what is to be taken now; None if nothing is.

        Args:
            told: what the master has told now. If it waits, and older progress waits already, it is
                left out: a log that is always a little behind reaches the older one.
            log_end: where the store's log ends.
        """
        for progress in (told, self._held):
            if progress is not None and progress.end <= log_end:
                self._held = None
                return progress.table
        self._held = self._held or told
        return None


class Deletions(Protocol):
    """Deletes topics."""

    def remaining(self) -> set[str]:
        """Return deleted topics with queues: of later records, which may be of a new topic."""
        ...

    def take(self, ends: Mapping[str, int], /) -> None:
        """Delete the records of topics up to physical offsets, by topic; again, if repeated."""
        ...


class FollowedTables:
    """The tables of a slave. Used by one thread at a time; others may read the tables meanwhile.

    What the master sends is not trusted: names that no broker accepts and values that are none are
    left out.

    Args:
        store: the store directory.
        role: the store's role, which knows of promotions.
        topics, offsets, groups: the store's own tables.
        deletions: deletes topics of the store.
        log_end: returns the physical offset up to which the store's log is on disk.
    """

    def __init__(
        self,
        store: str,
        role: Role,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        groups: ConsumerGroups,
        deletions: Deletions,
        log_end: Callable[[], int],
    ) -> None:
        self._store = store
        self._log_end = log_end
        self._role = role
        self._delays, self._transactions = _Later(), _Later()
        self._topics = topics
        self._offsets = offsets
        self._groups = groups
        self._deletions = deletions
        self._counter = _counter(topics.version)  # kept: both may start again with older files
        self._doubted: set[str] = set()

    def take_promotions(self, told: tuple[Promotion, ...]) -> None:
        """Take the promotions that a master's log has seen; see `Role.learn`.

        Raises:
            StoreWriteError: the file could not be written.
        """
        self._role.learn(told)

    def take_topics(self, value: Any, log_end: int) -> None:
        """Take the content of a master's `topics.json`, and delete the topics that it lacks.

        A store process tells its deletions. Of a broker, only the missing topics tell: they were
        deleted, and so were their records before `log_end`. But a broker can also lose topics, when
        it comes back with an older file: a lower `counter` of changes shows that, also after a
        start of this side. What is then missing is kept.

        Args:
            value: the content.
            log_end: where the master's log ended before it told the content.

        Raises:
            CorruptStoreError, RefusedError, StoreWriteError: see `ReplicaDeletions.take`.
        """
        if not isinstance(value, dict) or not isinstance(value.get(_TOPICS), dict):
            return
        missing = self._missing(value)
        told = value.get(DELETED_TOPICS)
        if isinstance(told, dict):
            ends = {n: e for n, e in told.items() if isinstance(n, str) and type(e) is int}
        else:
            ends = dict.fromkeys(missing, log_end)
        self._deletions.take(ends)
        self._topics.follow(value)

    def _missing(self, value: Mapping[str, Any]) -> set[str]:
        """Return the topics that a master has deleted, as its table shows."""
        known = {topic.name for topic in self._topics} | self._deletions.remaining()
        missing = known - value[_TOPICS].keys()
        counter = _counter(_version(value))
        if counter < max(self._counter, 0):
            self._doubted |= missing
        self._counter = counter
        self._doubted -= value[_TOPICS].keys()
        return missing - self._doubted

    def take_consumer_offsets(self, value: Any, log_end: int) -> None:
        """Take the content of a master's `consumerOffset.json`; see `ConsumerOffsets.follow`.

        The progress of transactions is in it as that of a group. If the log is behind, this is
        taken later: when this is called again.

        Args:
            value: the content.
            log_end: where the master's log ended after it had told the content.

        Raises:
            StoreWriteError: the file could not be written.
        """
        table = value.get(_OFFSETS) if isinstance(value, dict) else None
        if not isinstance(table, dict):
            return
        own = {n: of for n, of in table.items() if n.rpartition("@")[2] == TRANS_GROUP}
        due = self._transactions.due(_Progress(own, log_end), self._log_end())
        others = {n: of for n, of in table.items() if n not in own}
        self._offsets.follow({**others, **(due or {})})

    def take_delay_offsets(self, value: Any, log_end: int) -> None:
        """Take the content of a master's `delayOffset.json`, now or, if the log is behind, later.

        Later is when this is called again: with a newer content, or the same.

        Args:
            value: the content.
            log_end: where the master's log ended after it had told the content.

        Raises:
            CorruptStoreError: the file is damaged, and so is its backup.
            StoreWriteError: the file could not be written.
        """
        due = self._delays.due(_told_delays(value, log_end), self._log_end())
        if due is not None:
            ConfigFile(self._store, "delayOffset").replace(dict(due))

    def take_groups(self, value: Any) -> None:
        """Take the content of a master's `subscriptionGroup.json`.

        Raises:
            StoreWriteError: the file could not be written.
        """
        if isinstance(value, dict) and isinstance(value.get(_GROUPS), dict):
            self._groups.follow(value)


def _told_delays(value: Any, log_end: int) -> _Progress | None:
    table = value.get(_OFFSETS) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        return None
    levels = {
        int(level): offset
        for level, offset in table.items()
        if not impossible_delay(level, offset) and int(level) < _MOST_LEVEL
    }
    counted = value.get(_LOG_OFFSET)  # a store process says it
    if type(counted) is int and counted >= 0:
        return _Progress({_LOG_OFFSET: counted, _OFFSETS: levels}, counted)
    return _Progress({_OFFSETS: levels}, log_end)


def _version(value: Mapping[str, Any]) -> Any:
    found = value.get(_VERSION)
    return found if isinstance(found, dict) else {}


def _counter(version: Mapping[str, Any]) -> int:
    found = version.get("counter")
    return found if type(found) is int else -1
