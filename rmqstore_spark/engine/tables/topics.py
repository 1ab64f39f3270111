"""The topics of a store, in `config/topics.json` as a broker keeps it.

See docs/format.md, "A store directory" (upstream: TopicConfigManager, TopicConfig, ConfigManager).
Fields that this project does not know are preserved.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from rmqstore_spark.engine.tables.config_file import ConfigFile, ConfigTable
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.files.configfiles import is_data_version, is_topic_entry
from rmqstore_spark.layout.constants import (
    MAX_TOPIC_LENGTH,
    is_listed_topic_name,
    topic_fault,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger(__name__)

PERM_READ: Final = 4
PERM_WRITE: Final = 2
_PERM_INHERIT: Final = 1
_PERM_ALL: Final = PERM_READ | PERM_WRITE | _PERM_INHERIT

_TABLE: Final = "topicConfigTable"
_ORDER: Final = "order"
# The other fields that a broker writes for every topic, unless configured otherwise.
_USUAL: Final[dict[str, Any]] = {
    _ORDER: False,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
}
MOST_QUEUES: Final = 65_536
"""The most queues that a topic may have."""


class TopicChange(TypedDict, total=False):
    """What clients may set of a topic. None is as if it were not given.

    Attributes:
        read_queue_nums, write_queue_nums, perm: as in `TopicConfig`.
        order: what `mqadmin updateTopic -o` says of it; the store does nothing with it.
    """

    read_queue_nums: int | None
    write_queue_nums: int | None
    perm: int | None
    order: bool | None


@dataclass(frozen=True)
class TopicConfig:
    """The configuration of a topic.

    Attributes:
        name: its name.
        read_queue_nums: number of queues that consumers read.
        write_queue_nums: number of queues that messages are put into.
        perm: the sum of PERM_READ and PERM_WRITE.
        rest: all other fields of the topic in the file, by key.
    """

    name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ | PERM_WRITE
    rest: dict[str, Any] = field(default_factory=_USUAL.copy)

    def __post_init__(self) -> None:
        for what, count in (
            ("readQueueNums", self.read_queue_nums),
            ("writeQueueNums", self.write_queue_nums),
        ):
            if not 1 <= count <= MOST_QUEUES:
                raise OptionError(f"{what} must be from 1 to {MOST_QUEUES}, not {count}.")
        if not 0 <= self.perm <= _PERM_ALL:
            raise OptionError(f"perm must be from 0 to {_PERM_ALL}, not {self.perm}.")

    @property
    def is_writable(self) -> bool:
        """Whether messages may be put into the topic."""
        return bool(self.perm & PERM_WRITE)

    def changed(self, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Return the topic with other settings; those that are None stay as they are."""
        given: dict[str, Any] = {key: to for key, to in settings.items() if to is not None}
        if _ORDER in given:
            given["rest"] = {**self.rest, _ORDER: given.pop(_ORDER)}
        return replace(self, **given)

    def to_json(self) -> dict[str, Any]:
        """Return the topic's entry of topics.json."""
        known = {
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicName": self.name,
            "writeQueueNums": self.write_queue_nums,
        }
        return dict(sorted({**self.rest, **known}.items()))

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> TopicConfig:
        """Take an entry of topics.json.

        Raises:
            OptionError: a number is missing, or none that a topic can have.
        """
        numbers = [raw.get(key) for key in ("readQueueNums", "writeQueueNums", "perm")]
        read, write, perm = (-1 if n is None else n for n in numbers)
        known = {"topicName", "readQueueNums", "writeQueueNums", "perm"}
        rest = {key: value for key, value in raw.items() if key not in known}
        return cls(name, read, write, perm, rest)


class _Wanted:
    """Topics that a thread wants to create, and what came of it."""

    def __init__(self, topics: Sequence[TopicConfig]) -> None:
        self.topics = topics
        self.made: list[TopicConfig] = []
        self.error: BaseException | None = None
        self.is_done = False


class TopicWatcher(Protocol):
    """Wants to know when topics have changed."""

    def topics_changed(self) -> None:
        """Take note of it. Called in the thread of the change; must not wait."""


class TopicTable:
    """The topics of a store. Thread-safe; every change is on disk before it takes effect.

    Args:
        store: the store directory.
        clock: returns milliseconds since the epoch.
        most: the most topics that the store may have.
    """

    def __init__(self, store: str, clock: Callable[[], int], most: int) -> None:
        file = ConfigFile(store, "topics")
        self.path = file.path
        self._most = most
        self._unknown: dict[str, Any] = {}
        self._watchers: tuple[TopicWatcher, ...] = ()
        topics = dict(self._load(file.value))
        self._table = ConfigTable(file, _TABLE, topics, clock, self._encoded, self._tell)
        self._waiting: deque[_Wanted] = deque()

    def _load(self, value: Mapping[str, Any]) -> Iterator[tuple[str, TopicConfig]]:
        for name, raw in _table_of(value).items():
            try:
                if not is_listed_topic_name(name):
                    raise OptionError("a broker accepts no such name")
                yield name, TopicConfig.from_json(name, raw)
            except OptionError as error:
                _log.warning("%s: skipped the topic %r: %s", self.path, name, error)
                self._unknown[name] = raw

    def __len__(self) -> int:
        return len(self._table.held)

    def __contains__(self, name: str) -> bool:
        return name in self._table.held

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(tuple(self._table.held.values()))

    @property
    def content(self) -> Mapping[str, TopicConfig]:
        """The topics by name. It is replaced when one changes, and never changed."""
        return self._table.held

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, or None if it does not exist."""
        return self._table.held.get(name)

    @property
    def version(self) -> dict[str, Any]:
        """The `dataVersion` of the table: `counter` and `timestamp`; empty before any change."""
        return self._table.version

    def watch(self, watcher: TopicWatcher) -> None:
        """Tell a watcher of all changes from now on."""
        self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: TopicWatcher) -> None:
        """Tell a watcher of no more changes."""
        self._watchers = tuple(each for each in self._watchers if each is not watcher)

    def create(
        self, name: str, read_queue_nums: int, write_queue_nums: int, perm: int = 6
    ) -> TopicConfig:
        """Create a topic; see `create_all`."""
        return self.create_all([TopicConfig(name, read_queue_nums, write_queue_nums, perm)])[0]

    def create_all(self, wanted: Sequence[TopicConfig]) -> list[TopicConfig]:
        """Create topics, all of them or none. Existing topics stay as they are.

        Returns:
            Each topic as it is now.

        Raises:
            OptionError: no broker accepts a name, or there are too many topics.
            StoreWriteError: the file could not be written.
        """
        mine = _Wanted(wanted)
        self._waiting.append(mine)
        with self._table.changing():
            if not mine.is_done and self._table.is_outermost:
                self._create_waiting()
            elif not mine.is_done:
                self._waiting.remove(mine)
                self._make(mine)
        if mine.error is not None:
            raise mine.error
        return mine.made

    def _create_waiting(self) -> None:
        """Create what threads have wanted while this one waited for its turn: with one write."""
        wanted = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for each in wanted:
            self._make(each)
        try:
            self._table.write()
        except BaseException as error:
            for each in wanted:
                each.error = each.error or error
            raise

    def _make(self, wanted: _Wanted) -> None:
        wanted.is_done = True
        topics = self._table.now
        made = {topic.name: topic for topic in wanted.topics if topic.name not in topics}
        try:
            for name in made:
                _require_name(name)
            if made and len(topics) + len(made) > self._most:
                raise OptionError(
                    f"there are {len(topics)} topics, and maxTopics is {self._most}. "
                    "Delete some, or raise maxTopics."
                )
        except OptionError as error:
            wanted.error = error
            return
        if made:
            topics = {**topics, **made}
            self._table.set(topics)
        wanted.made = [topics[topic.name] for topic in wanted.topics]

    def restore(self, routes: Iterable[tuple[str, int]]) -> None:
        """Create topics that were deleted while messages for them waited.

        Args:
            routes: topics and queueIds of the messages.

        Raises:
            OptionError, StoreWriteError: as `create_all`.
        """
        least: dict[str, int] = {}
        for name, queue_id in routes:
            if name not in self._table.held:
                least[name] = max(least.get(name, 0), queue_id + 1)
        if least:
            self.create_all([TopicConfig(name, k, k) for name, k in least.items()])

    def update(self, name: str, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Change a topic; settings that are None stay as they are.

        Raises:
            TopicNotFoundError: there is no such topic.
            OptionError: no broker accepts a number.
            StoreWriteError: the file could not be written.
        """
        with self._table.changing():
            old = self._require(name)
            changed = old.changed(**settings)
            if changed != old:
                self._table.set({**self._table.now, name: changed})
            return changed

    def delete(self, names: Collection[str]) -> None:
        """Remove topics, all of them or none. The caller removes their queues.

        Raises:
            TopicNotFoundError: there is no such topic.
            StoreWriteError: the file could not be written.
        """
        with self._table.changing():
            for name in names:
                self._require(name)
            left = {n: t for n, t in self._table.now.items() if n not in names}
            self._table.set(left)

    def renew(self) -> None:
        """Give the table a new version, as if a topic had changed.

        Raises:
            StoreWriteError: the file could not be written.
        """
        with self._table.changing():
            self._table.set(dict(self._table.now))

    def follow(self, value: dict[str, Any]) -> None:
        """Replace all topics by a master's, unless its version is the one that is held.

        Args:
            value: the content of the master's file. Topics that no broker accepts, and those past
                the most that the store may have, are left out.

        Raises:
            StoreWriteError: the file could not be written; nothing has changed.
        """
        with self._table.changing():
            version: Any = value.get("dataVersion")
            if not is_data_version(version) or self._table.is_at(version):
                return
            topics = {}
            for name, raw in _table_of(value).items():
                with suppress(OptionError):
                    _require_name(name)
                    if is_topic_entry(raw):
                        topics[name] = TopicConfig.from_json(name, raw)
                if len(topics) == self._most:
                    break
            self._table.set(topics, version)

    def together(self) -> AbstractContextManager[None]:
        """Write all changes that the body makes with one write, at its end; none before counts.

        Other threads cannot change topics meanwhile. The context manager raises StoreWriteError if
        the file could not be written.
        """
        return self._table.changing()

    def _require(self, name: str) -> TopicConfig:
        topic = self._table.now.get(name)
        if topic is None:
            raise TopicNotFoundError(
                f"there is no topic {name[:MAX_TOPIC_LENGTH]!r} in {self.path}. `rmqstore "
                "topics` lists the topics of the store."
            )
        return topic

    def _encoded(self, topics: Mapping[str, TopicConfig]) -> dict[str, Any]:
        return {**self._unknown, **{name: topic.to_json() for name, topic in topics.items()}}

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher.topics_changed()


def _table_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the topics in the content of a file, by name."""
    table = value.get(_TABLE)
    return table if isinstance(table, dict) else {}


def require_clients_topic(name: str) -> None:
    """Refuse to change a topic that is not for clients.

    Raises:
        OptionError: the topic is the store's own, or no topic can have this name.
    """
    fault = topic_fault(name)
    if fault is not None:
        raise OptionError(fault)


def _require_name(name: str) -> None:
    """Refuse a name that no topic can have. The store's own topics are in the table too."""
    if not is_listed_topic_name(name):
        raise OptionError(str(topic_fault(name)))
