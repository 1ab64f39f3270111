"""A store that is open for reading. Nothing in it is ever changed.

`Store` shows the store as of `open` or the last `refresh`. While it is read, a broker may write to
it, and files may expire.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    StoreAccessError,
    TopicNotFoundError,
    UnsupportedStoreError,
)
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.joined import store_id_at
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.base import Skipped, join
from rmqstore_spark.files.systems.reads import PLAIN, DiskReads
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.constants import TERM_TOPIC, is_safe_folder_name, is_system_topic
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import flushed_end, intact_end, is_locked, load_log
from rmqstore_spark.reader.log.walk import Flaw, walk_log
from rmqstore_spark.reader.options import QueueRange, QueueSplit, ReadOptions, ScanSplit
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.queue_ends import last_entries, look_up_ends, refresh_queues
from rmqstore_spark.reader.rows.read import read_queue_split
from rmqstore_spark.reader.rows.scan import read_scan_split
from rmqstore_spark.reader.topics import Skips, Topic, read_topics, topics_with_queues

__all__ = ["Store", "Topic", "default_broker_name"]

_NO_CUT: Final = (1 << 63) - 1


def default_broker_name(path: str) -> str:
    """Return the name of the store's folder, or of its parent if the folder is called `store`."""
    outer = path.split("::")[0] if path.startswith("zip://::") else path
    parts = [part for part in outer.split("::")[-1].rstrip("/").split("/") if part]
    if not parts:
        return "store"
    name = parts[-1]
    if name == "store" and len(parts) > 1 and not parts[-2].endswith(":"):
        name = parts[-2]
    return name


def _require_range(queue: Queue, start: int | None, end: int | None) -> None:
    """Refuse offsets past the end of a queue, or in the wrong order."""
    first = 0 if start is None else start
    last = max(first, 0 if end is None else end)
    if last > queue.max_offset:
        queue.refresh(relist=True)
    if first < 0 or (end is not None and end < first) or last > queue.max_offset:
        raise OptionError(
            f"Offsets {first} to {'the end' if end is None else end} are outside queue "
            f"{queue.topic}/{queue.queue_id}, which holds offsets {queue.min_offset} to "
            f"{queue.max_offset}."
        )


class Store:
    """A store directory: its log, its topics and queues, and their messages.

    Create it with `Store.open`. It is a context manager; `close` closes its file handles.
    """

    def __init__(self, directory: StoreDirectory, broker_name: str) -> None:
        self.directory = directory
        self.broker_name = broker_name
        self._queues: dict[tuple[str, int], Queue] = {}
        self.log = self._load_log()
        self._log_end: int | None = None
        self._killed = False
        self._flushed = 0  # up to here, a store process that was killed had flushed the log
        self._dispatched: tuple[list[tuple[str, int, int]], int] = [], 0  # see `dispatched_end`
        self._skips = Skips()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        broker_name: str | None = None,
        commitlog_paths: Sequence[str] | None = None,
        archives: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        reads: DiskReads = PLAIN,
    ) -> Store:
        """Open the store at a path, fsspec URL or endpoint.

        Args:
            path: the store directory (`storePathRootDir`).
            broker_name: the name of the broker; by default the name of the store's folder, or of
                its parent if the folder is called `store`.
            commitlog_paths: the folders of the CommitLog, if they are not below the store.
            archives: the store's archives (`archiveTo`), to be read with it as one store.
            storage_options: options that fsspec passes to the store's file system, or options of
                `StoreClient` for an endpoint.
            reads: how the bytes of local files are read.

        Raises:
            StoreNotFoundError: there is no store at the path. The error lists what was expected.
            StoreAccessError: permission to read the store is denied.
        """
        text = os.fspath(path)
        directory = StoreDirectory.open(
            text,
            commitlog_paths=commitlog_paths,
            archives=archives,
            storage_options=storage_options,
            reads=reads,
        )
        if broker_name is None:
            name = os.path.abspath(text) if directory.files.is_local and "://" not in text else text
            broker_name = getattr(directory.files, "store_name", None) or default_broker_name(name)
        return cls(directory, broker_name)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.path!r}, broker_name={self.broker_name!r})"

    def close(self) -> None:
        """Close the file handles."""
        self.directory.files.close()

    # ---- the log -------------------------------------------------------------------------------

    def _load_log(self) -> CommitLog:
        log, self._dledger = load_log(self.directory)
        return log

    def refresh(self, *, topology: bool = True, offsets: bool = True) -> None:
        """List the files again, to see what was added or removed since `open` or the last refresh.

        Args:
            topology: list topics and queues too, not only the log.
            offsets: with `topology`: look up the offsets of the queues again on their next use.
                Otherwise the caller must `refresh` the queues that it uses.
        """
        self.log.replace(self._load_log())
        self._log_end = None
        if topology:
            listed = self.directory.refresh()
            for topic, queue_id in list(self._queues):
                if queue_id not in listed.queues.get(topic, ()):
                    del self._queues[topic, queue_id]
                elif offsets:
                    self._queues[topic, queue_id].forget(listed.listings.get((topic, queue_id)))

    def refresh_queues(self, queues: Sequence[Queue], *, relist: bool = False) -> list[bool]:
        """Look for new and expired entries of queues; see `reader.queue_ends`."""
        return refresh_queues(self.directory, self.log, queues, relist=relist)

    @property
    def path(self) -> str:
        """The store directory."""
        return self.directory.path

    @property
    def store_id(self) -> str | None:
        """The store's id; None if it has none, because only brokers have written it.

        A copy has the id of its original, and a follower's store an id of its own.
        """
        return store_id_at(self.directory.files, self.path)

    @property
    def is_closed_cleanly(self) -> bool:
        """Whether `abort` is missing: no broker has the store open, and none was killed."""
        return self.directory.is_closed_cleanly

    @property
    def is_being_written(self) -> bool:
        """Whether a process on this machine has the store open for writing."""
        return not self.is_closed_cleanly and is_locked(self.directory.files, self.path)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The store's checkpoint; None if it has none.

        Raises:
            CorruptStoreError: the file is not a valid checkpoint.
        """
        try:
            data = self.directory.files.read(self.directory.checkpoint_path, 0, 4096)
        except FileNotFoundError:
            return None
        return Checkpoint.decode(data, file=self.directory.checkpoint_path)

    @property
    def min_offset(self) -> int:
        """Physical offset of the log's first byte."""
        return self.log.min_offset

    def log_end(self, wanted: int = 0) -> int:
        """Return the physical offset where the log ends, up to which queues may point.

        See `reader.log.end`.

        Args:
            wanted: a physical offset that a queue points up to. If it is past the known end, and
                the log can have grown, the files of the log are listed again.
        """
        if self._log_end is None:
            self._killed = (
                self._dledger is None and not self.is_closed_cleanly and not self.is_being_written
            )
            self._flushed = 0
            if self._killed:
                self._flushed = flushed_end(self.directory.files, self.path)
                if self._flushed > self.log.file_end:  # or it has grown since it was listed
                    self.log.replace(self._load_log())
                self._log_end = intact_end(self.log, self.checkpoint)
            else:
                self._log_end = self.log.file_end
        elif wanted > self._log_end and not self._killed:
            self.refresh(topology=False)
            self._log_end = self.log.file_end
        return self._log_end

    def _queue_cut(self, wanted: int) -> tuple[int, bool]:
        """Return the end of the log for queue entries, and whether the broker was killed.

        Entries past that physical offset do not count. In a store that was closed, or that is open,
        an entry past the end of the log is damage, or the store is a partial copy; in one whose
        process was killed, an entry of what was flushed. Such entries are not cut off: reading them
        reports the error.
        """
        end = max(self.log_end(wanted), self._flushed)
        return (end if self._killed or self._dledger else _NO_CUT), self._killed

    def dispatched_end(self, topics: Iterable[str] | None = None) -> int:
        """Return the end of the newest record that a queue names; the log's begin if none does.

        Args:
            topics: look at the queues of these topics only.
        """
        queues = [queue for queue in self.queues(topics) if queue.max_offset > queue.min_offset]
        last = [(queue.topic, queue.queue_id, queue.max_offset) for queue in queues]
        known, end = self._dispatched
        if last != known:  # else a search after another one in the same state of the store
            entries = last_entries(self.directory.queue_format, queues)
            ends = entries["physicalOffset"].astype(np.int64) + entries["size"]
            end = int(ends.max(initial=0))
            self._dispatched = last, end
        return max(end, self.log.min_offset)

    def named_end(self) -> int:
        """Return the end of the newest record that queues name; 0 if they are not reliable.

        The queues of a killed broker may name records that never reached the disk.
        """
        self.log_end()
        return 0 if self._killed or not self.has_queues else self.dispatched_end()

    def known_end(self) -> int:
        """Return how far the log is known to have reached; 0 if nothing tells it."""
        named = self.named_end()
        return self._flushed if self._killed else named

    def published_end(self) -> int:
        """Return the offset below which what looks like an unpublished block is damage."""
        end = self.log_end()
        return end if self._killed else self.named_end()

    def is_open_end(self, offset: int) -> bool:
        """Return whether the log of a store in use may end at an offset, whatever follows there.

        A large block is written beyond the end, with room before it, until it is published
        (docs/format.md, "A block that is not published yet"). Ask before you look again whether
        the offset is still empty: what is published later fills up the room.
        """
        return not self.is_closed_cleanly and offset >= self.published_end()

    # ---- topics and queues ---------------------------------------------------------------------

    @property
    def has_queues(self) -> bool:
        """Whether a queue has files."""
        return bool(self.directory.topology.queues)

    @property
    def lacks_queues(self) -> bool:
        """Whether the log has messages, but no queue has files."""
        if self.has_queues:
            return False
        first = next(iter(self.log.segments()), None)
        if first is None or not any(self.log.read(first.start, 8)):
            return False
        return self._dledger is None or self.needs_queues(self.log_end())

    def needs_queues(self, end: int) -> bool:
        """Return whether the log has more up to a physical offset than terms of a DLedger group.

        The records with which leaders began get into no queue.
        """
        if self._dledger is None:
            return end > self.min_offset
        return any(
            isinstance(item, Flaw)
            or string_array(item.records.topic).unique().to_pylist() != [TERM_TOPIC]
            for item in walk_log(self.log, self.min_offset, end, check_crc=False)
        )

    @property
    def awaits_queues(self) -> bool:
        """Whether no queue has files yet, but one gets them with the next message.

        The log of a store that is being written can be ahead of its first queue.
        """
        if self.has_queues or self._has_foreign_queues:
            return False
        return self.is_being_written or not self.lacks_queues

    @property
    def _has_foreign_queues(self) -> bool:
        return self.directory.has_rocksdb_queues or bool(self.directory.batch_queues().queues)

    def topics(self) -> list[Topic]:
        """List the topics that have queues or are configured, sorted by name."""
        self._skips.tell(self.directory)
        return read_topics(self.directory)

    def known_topics(self) -> list[Topic]:
        """List the topics like `topics`, for callers that do not need their settings.

        If `topics.json` cannot be read, log that, and return the topics that have queues.
        """
        try:
            return self.topics()
        except (CorruptStoreError, StoreAccessError) as error:
            path = join(self.path, "config", "topics.json")
            self._skips.tell_of([Skipped(path, str(error).rstrip("."))])
            return topics_with_queues(self.directory)

    def queue(self, topic: str, queue_id: int) -> Queue:
        """Return a queue.

        Raises:
            TopicNotFoundError: the topic or queue does not exist. The error lists those that do.
        """
        found = self._queues.get((topic, queue_id))
        if found is not None:
            return found
        directory = self.directory
        segments = None
        # A task of one queue need not list all of them, nor one of many where that is cheap.
        is_cheap = self._queues and directory.files.lists_trees
        if is_safe_folder_name(topic) and not (directory.is_listed or is_cheap):
            segments = directory.queue(topic, queue_id)
        if not segments:
            self._require_queue(topic, queue_id)
            segments = directory.queue(topic, queue_id)
        if segments.strays:
            self._skips.tell_of(segments.strays)
        queue = Queue(
            directory.queue_format,
            self.log,
            topic,
            queue_id,
            segments,
            self._extension,
            self._queue_cut,
        )
        self._queues[topic, queue_id] = queue
        return queue

    def _require_queue(self, topic: str, queue_id: int) -> None:
        queues = self.directory.topology.queues
        if topic not in queues:
            raise TopicNotFoundError(
                f"{self.path} has no topic {topic!r}. It has: "
                f"{', '.join(sorted(n for n in queues if not is_system_topic(n))) or 'none'}."
            )
        if queue_id not in queues[topic]:
            raise TopicNotFoundError(
                f"Topic {topic!r} of {self.path} has no queue {queue_id}. "
                f"Its queues are {', '.join(map(str, queues[topic]))}."
            )

    def _extension(self, topic: str, queue_id: int) -> Segments:
        found = self.directory.queue_extension(topic, queue_id)
        self._skips.tell_of(found.strays)
        return found

    def queues(self, topics: Iterable[str] | None = None) -> list[Queue]:
        """List all queues, or those of the given topics, by topic and queueId."""
        self._skips.tell(self.directory, self.log.plain.strays)
        known = self.directory.topology.queues
        names = list(known) if topics is None else list(topics)
        return self.named_queues((name, n) for name in names for n in known.get(name, ()))

    def named_queues(self, names: Iterable[tuple[str, int]]) -> list[Queue]:
        """Return some queues, as `queue` does; look up their offsets if that is worth it.

        Args:
            names: topic and queueId of each.
        """
        found = [self.queue(topic, queue_id) for topic, queue_id in names]
        if self.directory.files.reads_together:
            look_up_ends(self.log, found)
        return found

    # ---- messages ------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        start: int | None = None,
        end: int | None = None,
        options: ReadOptions = ReadOptions(),
    ) -> Iterator[pa.RecordBatch]:
        """Read messages of a queue, in its order.

        Args:
            start: first offset; by default the queue's minimum.
            end: one past the last offset; by default the queue's maximum.

        Raises:
            OptionError: the offsets are past the queue's end, or in the wrong order.
            SegmentExpiredError, CorruptStoreError: as `read_split`, during iteration.
        """
        queue = self.queue(topic, queue_id)
        _require_range(queue, start, end)
        first = queue.min_offset if start is None else start
        last = queue.max_offset if end is None else end
        split = QueueSplit(QueueRange(topic, queue_id, first, last), 0)
        return read_queue_split(self, split, options)

    def scan(self, options: ReadOptions = ReadOptions()) -> Iterator[pa.RecordBatch]:
        """Read all records of the log in physical order, also prepared and rolled-back ones.

        A scan needs no queues. While a broker has the store open, it ends at the newest record
        that was dispatched to a queue. If there are no queues, it ends at the end of the intact
        log.
        """
        return read_scan_split(self, ScanSplit(self.log.min_offset, self.scan_end()), options)

    def scan_end(self, topics: Collection[str] | None = None) -> int:
        """Return the physical offset where `scan` ends.

        Args:
            topics: ignore the records of others, if each of these has queues. In a store that a
                broker has open, the last entry of each queue is read to find the end.
        """
        if self._dledger is None and self.is_being_written:
            known = self.directory.topology.queues
            if known:
                has_all = topics is not None and all(topic in known for topic in topics)
                return self.dispatched_end(topics if has_all else None)
            return intact_end(self.log, self.checkpoint)
        return max(self.log_end(), self._flushed)

    @property
    def why_no_queues(self) -> str:
        """The reason why a store without queues has none that can be read."""
        if self.directory.has_rocksdb_queues:
            return "its queues are in RocksDB (RocketMQ 5), which this package does not read"
        if self.directory.batch_queues().queues:
            return "it has only batch queues (RocketMQ 5), which this package does not read"
        return "it has no ConsumeQueues"

    def require_queues(self, purpose: str, remedy: str = "") -> None:
        """Refuse an operation that needs queues, if the store has none and awaits none.

        Args:
            purpose: what needs the queues.
            remedy: what to do, if a batch read of the store does not help.

        Raises:
            UnsupportedStoreError: the store has no queues. The error says why and what to do.
        """
        if self.has_queues or self.awaits_queues:
            return
        remedy = remedy or "Read the store in batch with planBy=commitlog"
        raise UnsupportedStoreError(
            f"{purpose} needs the queues of {self.path}, but {self.why_no_queues}. {remedy}, or "
            "have its queues built from its log: `rmqstore recover` does it on a copy, and so does "
            "a broker that starts there."
        )
