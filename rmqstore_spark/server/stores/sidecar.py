"""A sidecar: a process that serves, read-only, stores that others write, or nobody.

No lock is taken, and nothing is written or kept open for writing. What clients ask for is looked up
in the files each time, so new messages, new topics, expired segments and a broker that starts again
need no special care here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.engine.tables.store_id import id_of_place, kept_store_id
from rmqstore_spark.errors import OptionError, RefusedError, RmqStoreError
from rmqstore_spark.files.links import refuse_links
from rmqstore_spark.files.systems.reads import PLAIN, PacedReads, SparingReads
from rmqstore_spark.files.systems.schemes import is_endpoint
from rmqstore_spark.reader.store import Store, default_broker_name
from rmqstore_spark.server.stores.served import ServedPort, ServedStore, StoreService
from rmqstore_spark.server.view import ForeignView
from rmqstore_spark.wire.endpoint import is_store_name
from rmqstore_spark.wire.messages import OffsetsReply, QueueOffsets
from rmqstore_spark.wire.protocol import DENIED, PROTOCOL
from rmqstore_spark.wire.reading import OpenReply, OpenRequest, TopicSettings

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.ha.replication import Replication
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.topics import Topic

_log = logging.getLogger(__name__)

READ_ONLY: Final = "READ_ONLY"
"""The state of a store that is served read-only."""

_PERM: Final = 7
_DEFAULT_PERM: Final = 6


@dataclass(frozen=True)
class _Ends:
    """Where the log and its queues begin and end, as they were seen last."""

    seen: object
    begin: int
    end: int
    queues: Mapping[str, Mapping[str, QueueOffsets]]


class ForeignStore(ServedStore):
    """A store that is served read-only. Threads can share it.

    Args:
        name: its broker name.
        path: the store directory.
        log_folders: folders of its CommitLog; None if that is in the store.
        config: the limits that clients are told.
        reads: how its files are read.

    Raises:
        RmqStoreError: there is no store at the path, or it cannot be read.
    """

    def __init__(
        self,
        name: str,
        path: str,
        log_folders: Sequence[str] | None,
        config: StoreConfig,
        reads: PacedReads,
    ) -> None:
        self._folders = log_folders
        self._config = config
        self._reads = reads
        refuse_links(path, keeps_config=False)
        self._store = Store.open(path, broker_name=name, commitlog_paths=log_folders, reads=reads)
        super().__init__(
            name, path, ForeignView(path, self._store.directory.commitlog_folders, reads)
        )
        self._lock = threading.Lock()  # a `Store` serves one thread
        self._ends: _Ends | None = None
        self._left_out: set[tuple[str, int]] = set()
        self._since = time.monotonic()

    @property
    def writer(self) -> StoreWriter:
        """Refused."""
        raise self._is_read_only()

    @property
    def replication(self) -> Replication:
        """Refused."""
        raise self._is_read_only()

    def _is_read_only(self) -> RefusedError:
        return RefusedError(
            f"{self.name} is served read-only, because this process does not write it. Write "
            "through its broker or store process.",
            DENIED,
        )

    def open(self, request: OpenRequest) -> OpenReply:
        """Return the store's name and limits; refuse a client that is about to write."""
        if request.topics:
            _ = self.writer
        config = self._config
        return OpenReply(
            protocol=PROTOCOL,
            store_id=kept_store_id(self.path) or id_of_place(self.path),
            broker_name=self.name,
            is_master=False,
            store_host_v6=False,
            max_message_size=config.max_message_size,
            max_block_bytes=config.max_block_bytes,
            max_block_rows=config.max_block_rows,
            auto_create_topic_enable=False,
            default_topic_queue_nums=config.default_topic_queue_nums,
            topics=self.topics() if request.topics is None else {},
        )

    def topics(self) -> dict[str, TopicSettings]:
        """Return the settings of all topics by name."""
        with self.reader() as store:
            return {topic.name: _settings_of(topic) for topic in store.known_topics()}

    def offsets(self, topics: Sequence[str] | None) -> OffsetsReply:
        """Return the ends of the log and of queues. What can be read counts as flushed."""
        ends = self._found_ends()
        wanted = ends.queues if topics is None else topics
        queues = {topic: ends.queues[topic] for topic in wanted if topic in ends.queues}
        return OffsetsReply(ends.begin, ends.end, ends.end, queues)

    def stats(self) -> dict[str, Any]:
        """Return the store's figures."""
        ends = self._found_ends()
        return {
            "state": READ_ONLY,
            "uptimeSeconds": time.monotonic() - self._since,
            "readBytes": self._reads.total,
            "commitLogMinOffset": ends.begin,
            "commitLogMaxOffset": ends.end,
            "queues": {
                topic: {number: [q.min_offset, q.max_offset] for number, q in numbers.items()}
                for topic, numbers in ends.queues.items()
            },
        }

    def reader(self) -> Store:
        """Open the store for reading."""
        return Store.open(
            self.path, broker_name=self.name, commitlog_paths=self._folders, reads=self._reads
        )

    def _found_ends(self) -> _Ends:
        """Return where log and queues end now.

        The end of a killed broker's log is found by reading its last segments. So what was found
        there counts until the files change.
        """
        with self._lock:
            store = self._store
            store.refresh()
            seen = self._seen(store)
            if self._ends is None or seen is None or self._ends.seen != seen:
                queues: dict[str, dict[str, QueueOffsets]] = {}
                for queue in store.queues():
                    ends = self._ends_of(queue)
                    if ends is not None:
                        queues.setdefault(queue.topic, {})[str(queue.queue_id)] = ends
                end = store.named_end() or store.log_end()
                self._ends = _Ends(seen, store.min_offset, end, queues)
            return self._ends

    def _ends_of(self, queue: Queue) -> QueueOffsets | None:
        """Return the ends of a queue; None, and a line in the log, if its files are damaged."""
        try:
            return QueueOffsets(queue.min_offset, queue.max_offset)
        except (RmqStoreError, FileNotFoundError) as error:
            if (queue.topic, queue.queue_id) not in self._left_out:
                self._left_out.add((queue.topic, queue.queue_id))
                _log.warning(
                    "Queue %s/%d of %s is left out of its figures: %s",
                    queue.topic, queue.queue_id, self.name, error,
                )  # fmt: skip
            return None

    @staticmethod
    def _seen(store: Store) -> object:
        """Return what changes when the files of a killed broker's store do; None for others."""
        if store.is_closed_cleanly or store.is_being_written or store.log.dledger is not None:
            return None
        files = store.directory.files
        return [files.list(folder) for folder in (*store.directory.commitlog_folders, store.path)]


def _settings_of(topic: Topic) -> TopicSettings:
    """Return the settings of a topic; what topics.json does not say, its queues do."""
    count = max(topic.queue_ids, default=-1) + 1
    numbers = (topic.read_queue_nums, topic.write_queue_nums)
    read, write = (count if n is None or not 0 <= n < 1 << 31 else n for n in numbers)
    return TopicSettings(read, write, (_DEFAULT_PERM if topic.perm is None else topic.perm) & _PERM)


_FAILED: Final = "FAILED"


@dataclass(frozen=True)
class StorePlace:
    """Where a store is, and what it is called.

    Attributes:
        name: its broker name.
        path: the store directory, absolute.
        log_folders: folders of its CommitLog, absolute; None if that is in the store.
    """

    name: str
    path: str
    log_folders: tuple[str, ...] | None = None


def store_places(given: Sequence[str], config: StoreConfig) -> list[StorePlace]:
    """Return the stores that a command line and a configuration name.

    Args:
        given: a PATH or NAME=PATH for each store. A store without a name has `brokerName` if it is
            the only one, and else the name of its folder.
        config: also has `storePathRootDir`, if no store is given, and `storePathCommitLog`.

    Raises:
        OptionError: there is no store; two have the same name; or a name cannot be a store's.
    """
    texts = list(given) or [config.store_path_root_dir]
    if not texts[0]:
        raise OptionError(
            "No store given: give --store PATH, or set storePathRootDir in the file of --config."
        )
    if config.store_path_commit_log and len(texts) > 1:
        raise OptionError(
            "storePathCommitLog is set, and several stores are given. Serve a store whose "
            "CommitLog is elsewhere by a process of its own."
        )
    folders = tuple(map(os.path.abspath, filter(None, config.store_path_commit_log.split(","))))
    places = []
    for text in texts:
        name, path = _split(text)
        if "://" in path or is_endpoint(path):
            raise OptionError(
                f"{path} is a URL, but a store can only be served from a folder of this machine. "
                "Give the path of a folder."
            )
        path = os.path.abspath(path)
        if not name:
            name = config.broker_name if len(texts) == 1 else default_broker_name(path)
        places.append(StorePlace(name, path, folders or None))
    _check_names(places)
    return places


def _split(text: str) -> tuple[str, str]:
    """Split NAME=PATH; a path alone has no name."""
    name, mark, path = text.partition("=")
    return (name, path) if mark and path and "/" not in name else ("", text)


def _check_names(places: Sequence[StorePlace]) -> None:
    by_name: dict[str, StorePlace] = {}
    for place in places:
        if not is_store_name(place.name):
            raise OptionError(
                f"{place.name!r} cannot be the name of a store in an endpoint: it needs 1 to 127 "
                f"letters, digits and . _ - % |. Give one: --store NAME={place.path}."
            )
        other = by_name.setdefault(place.name, place)
        if other is not place:
            raise OptionError(
                f"The stores {other.path} and {place.path} are both called {place.name!r}. Give "
                f"names: --store NAME={place.path}."
            )


class Sidecar(StoreService):
    """Stores that are served read-only, with one limit on what is read of them all.

    Args:
        places: the stores.
        config: the limits that clients are told.
        spares_page_cache: whether reading leaves the page cache as it was.
        max_read_rate: bytes per second; None for no limit.

    Raises:
        RmqStoreError: there is no store at a path, or it cannot be read.
    """

    def __init__(
        self,
        places: Sequence[StorePlace],
        config: StoreConfig,
        *,
        spares_page_cache: bool,
        max_read_rate: int | None,
    ) -> None:
        self._reads = PacedReads(SparingReads() if spares_page_cache else PLAIN, max_read_rate)
        self._foreign = [
            ForeignStore(place.name, place.path, place.log_folders, config, self._reads)
            for place in places
        ]
        super().__init__(self._foreign)

    def start(self, port: ServedPort) -> None:
        """Do nothing: the stores are served as they are."""

    def close(self) -> None:
        """Do nothing: nothing is kept open for writing."""

    def stats(self) -> dict[str, Any]:
        """Return the figures of all stores, ready for JSON.

        The state is FAILED if a store cannot be read; its figures are then missing.
        """
        state, figures = READ_ONLY, {}
        for store in self._foreign:
            try:
                figures[store.name] = store.stats()
            except (RmqStoreError, OSError) as error:
                _log.warning("%s cannot be read: %s", store.name, error)
                state, figures[store.name] = _FAILED, {"state": _FAILED}
        return {"state": state, "readBytes": self._reads.total, "stores": figures}
