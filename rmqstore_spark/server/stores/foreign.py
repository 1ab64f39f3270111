"""A store that another process writes, or that nobody writes: it is served read-only.

No lock is taken, and nothing is written or kept open for writing. What clients ask for is looked up
in the files each time, so new messages, new topics, expired segments and a broker that starts again
need no special care here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.engine.tables.store_id import id_of_place, kept_store_id
from rmqstore_spark.errors import RefusedError, RmqStoreError
from rmqstore_spark.files.links import refuse_links
from rmqstore_spark.files.reads import PacedReads
from rmqstore_spark.reader.store import Store
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.server.view import ForeignView
from rmqstore_spark.wire.failures import DENIED
from rmqstore_spark.wire.messages import OffsetsReply, OpenReply, QueueOffsets, TopicSettings
from rmqstore_spark.wire.protocol import PROTOCOL

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

    def open(self, topics: Sequence[str] | None) -> OpenReply:
        """Return the store's name and limits; refuse a client that is about to write."""
        if topics:
            _ = self.writer
        config = self._config
        return OpenReply(
            protocol=PROTOCOL,
            store_id=kept_store_id(self.path) or id_of_place(self.path),
            broker_name=self.name,
            store_host_v6=False,
            max_message_size=config.max_message_size,
            max_block_bytes=config.max_block_bytes,
            max_block_rows=config.max_block_rows,
            auto_create_topic_enable=False,
            default_topic_queue_nums=config.default_topic_queue_nums,
            topics=self.topics() if topics is None else {},
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
