"""A store that is written: `with StoreWriter.open(path) as store: store.put(block)`.

    put:  state -> check_block -> topics -> [append lock: place, number, stamp, write, dispatch]
          -> flush, under SYNC_FLUSH shared with all who wait

One process writes a store, by any number of threads. (Upstream: DefaultMessageStore.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from rmqstore_spark.engine.append.admission import Admission
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.append.rows import record_columns
from rmqstore_spark.engine.batches.staging import Stage
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.histogram import Histogram
from rmqstore_spark.engine.opening import OpenStore, open_store
from rmqstore_spark.engine.recovery.recover import Progress
from rmqstore_spark.engine.recovery.summary import Recovery
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.engine.tables.deleted_topics import DeletedTopics
from rmqstore_spark.engine.tables.topics import TopicConfig, TopicTable, require_clients_topic
from rmqstore_spark.engine.workers import Running
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.types import CommitRequest, CommitResult

__all__ = ["StoreWriter"]


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class StoreWriter:
    """The one writer of a store. Thread-safe; made by `open`.

    Attributes:
        config: how the store is kept.
        topics: its topics.
    """

    def __init__(self, store: OpenStore, config: StoreConfig, clock: Callable[[], int]) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._opened = time.monotonic()
        self._closing = threading.Lock()
        self._closed = False
        self._commit_latency = Histogram()
        self.topics = TopicTable(store.path, clock, config.max_topics)
        self._admission = Admission(
            store.path, store.commitlog, config, self.topics, store.parts.queues
        )
        self._deleted = DeletedTopics(store.path)
        self._running = Running(
            store,
            config,
            self.topics,
            self._admission,
            check_state=self._check_state,
            clock=clock,
        )
        self._puts = Puts(
            config,
            self._admission,
            self._running.appender,
            self._running.flusher,
            check_state=self._check_state,
        )

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: StoreConfig | None = None,
        *,
        clock: Callable[[], int] = _wall_clock,
        progress: Progress = lambda *_: None,
        cut: bool = False,
        rebuild: bool = False,
    ) -> StoreWriter:
        """Open a store for writing, recovered; make it where there is none.

        Args:
            path: the store directory.
            config: how it is kept.
            clock: milliseconds since the epoch; may go back, storeTimestamps do not.
            progress: told what recovery is doing, and how many bytes of how many are done.
            cut: go on where damage would stop the opening; what is cut off is kept.
            rebuild: write all queues and the index anew from the log: for files that are damaged.

        Raises:
            OptionError: the folder holds something else.
            StoreLockedError: another process has the store.
            UnsupportedStoreError: it is of a kind that is not written.
            CorruptStoreError: it is damaged where no crash can have damaged it.
            StoreWriteError: something could not be written.
        """
        config = config or StoreConfig()
        absolute = os.path.abspath(os.fspath(path))
        store = open_store(
            absolute, config, clock=clock, progress=progress, cut=cut, rebuild=rebuild
        )
        try:
            return cls(store, config, clock)
        except BaseException:
            store.close(clean=False)
            raise

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The store directory."""
        return self._store.path

    @property
    def log_folder(self) -> str:
        """Folder of the CommitLog."""
        return self._store.commitlog

    @property
    def published_end(self) -> int:
        """Physical offset up to which the log holds whole records that readers may see."""
        return self._store.log.max_offset

    @property
    def recovery(self) -> Recovery:
        """What was done when the store was opened."""
        return self._store.parts.summary

    @property
    def state(self) -> str:
        """One of `status.STATES`: RUNNING where messages are taken."""
        if self._closed:
            return "CLOSED"
        state = self._admission.state
        return "DISK_FULL" if state == "RUNNING" and self._running.lacking else state

    # ---- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int = 6,
    ) -> TopicConfig:
        """Make a topic; one that is there stays as it is.

        Args:
            name: its name.
            read_queue_nums: as many as writeQueueNums unless given.
            write_queue_nums: unless given, `defaultTopicQueueNums`, or as many as the store holds
                queues of that name.
            perm: 4 to read, 2 to write.

        Raises:
            OptionError: a name or a number that no broker takes, or the store's own name.
            RefusedError: the store is closed, or has failed.
            StoreWriteError: it could not be written down.
        """
        self._require_alive()
        require_clients_topic(name)
        write = write_queue_nums or read_queue_nums or self._admission.queue_nums([name])[0]
        return self.topics.create(name, read_queue_nums or write, write, perm)

    def create_topics(self, names: Sequence[str]) -> None:
        """Make topics as `create_topic` does without numbers: all of them at once, or none."""
        self._require_alive()
        for name in names:
            require_clients_topic(name)
        counts = self._admission.queue_nums(names)
        self.topics.create_all([TopicConfig(n, k, k) for n, k in zip(names, counts, strict=True)])

    def update_topic(
        self,
        name: str,
        *,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int | None = None,
    ) -> TopicConfig:
        """Change what is given of a topic; see `TopicTable.update`, and `create_topic`."""
        self._require_alive()
        require_clients_topic(name)
        return self.topics.update(
            name, read_queue_nums=read_queue_nums, write_queue_nums=write_queue_nums, perm=perm
        )

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its queues; its messages stay in the log until that expires.

        Raises:
            TopicNotFoundError: there is none of that name.
            OptionError: it is the store's own.
            RefusedError: the log is busy, or the store is closed or has failed.
            StoreWriteError: that could not be written down, or there is no room for queues.
        """
        self._require_alive()
        require_clients_topic(name)
        appender = self._running.appender
        with appender.appending():
            self._running.drain()
            with self._deleted.adding(name, self._running.flusher.flush()):
                self.topics.delete(name)
            self._store.parts.queues.drop(name)
            appender.forget(name)

    # ---- messages ------------------------------------------------------------------------------

    def put(
        self, data: U1, *, whole: bool = False, check: bool = True, wait: bool = True
    ) -> PutResult:
        """Store a block of encoded records: all of them, or none.

        Args:
            data: uint8, see `layout.block`; may be stamped in place if it can be written to, and
                is not to be changed any more by the caller.
            whole: all of them go to one segment, as a MessageExtBatch does.
            check: look at topics as a broker does for its clients; False takes system topics,
                queues that are not configured and any sysFlag, as replication needs.
            wait: under SYNC_FLUSH, answer when the records are on disk; else `settle` does that.
        """
        return self._puts.put(data, whole=whole, check=check, wait=wait)

    def put_all(self, blocks: Sequence[U1]) -> list[PutResult]:
        """Store blocks, one after the other, each by itself; wait for the disk once for all.

        Args:
            blocks: as `put` takes them.

        Returns:
            The outcome of each. One that is refused for a reason that passes is the last: what
            stands behind it is not stored, and has no outcome.
        """
        return self._puts.put_all(blocks)

    def put_batch(self, batch: pa.RecordBatch, *, whole: bool = False) -> PutResult:
        """Encode and store messages.

        Args:
            batch: columns of RECORD_COLUMNS, without nulls; topic and body are needed, the others
                have a default. What the store decides (offsets, storeTimestamp, storeHost) is
                passed over.
            whole: as in `put`.

        Raises:
            OptionError: a column is missing, or holds what no record can.
        """
        columns = record_columns(batch, self._clock(), self.config.host[0])
        return self.put(encode_records(columns).data, whole=whole)

    def settle(self, result: PutResult) -> PutResult:
        """Wait for what `flushDiskType` asks for; the result with the status that it has then."""
        return self._puts.settle(result)

    # ---- batches of Spark ----------------------------------------------------------------------

    def begin_stage(self, stage_id: str, owner: str = "", identity: str = "") -> Stage:
        """Begin to stage what one attempt of a task writes.

        Args:
            stage_id: 32 hex digits, new with each attempt.
            owner: who writes it, for messages to people.
            identity: of the client, where its certificate gives one; empty elsewhere.

        Raises:
            RefusedError: the id is none, in use or aborted, or the store takes nothing.
        """
        return self._running.transactions.begin_stage(stage_id, owner, identity)

    def commit(self, request: CommitRequest, identity: str = "") -> CommitResult:
        """Let what was staged appear in the log, whole and once; see `Committer.commit`.

        Args:
            request: what to commit.
            identity: of the client, where its certificate gives one; empty elsewhere.

        Raises:
            RefusedError: nothing was committed.
            StoreWriteError: whether it was is open until the store is opened again.
        """
        begin = time.monotonic()
        result = self._running.transactions.commit(request, identity)
        if result.status == "COMMITTED":
            self._puts.count(result.rows, sum(stage.bytes for stage in request.stages))
            self._commit_latency.observe(time.monotonic() - begin)
        return result

    def abort(self, stage_ids: Iterable[str], identity: str = "") -> None:
        """Remove stages, for good; those that were committed stay committed.

        Args:
            stage_ids: which.
            identity: of the client, where its certificate gives one; empty elsewhere.

        Raises:
            RefusedError: a stage is another client's; nothing was removed.
        """
        self._running.transactions.abort(stage_ids, identity)

    # ---- the rest ------------------------------------------------------------------------------

    def flush(self) -> dict[str, int]:
        """Bring log, queues, index and checkpoint to disk.

        Returns:
            minOffset, maxOffset and flushedOffset of the CommitLog.

        Raises:
            StoreWriteError: that failed, and the store takes no more messages; or there is no room
                for queues and index.
        """
        self._running.flush()
        log = self._store.log
        return {
            "minOffset": log.min_offset,
            "maxOffset": log.max_offset,
            "flushedOffset": log.flushed_offset,
        }

    def stats(self) -> dict[str, Any]:
        """Figures of the store, as JSON takes them."""
        log, ranges = self._store.log, self._store.parts.queues.ranges()
        return {
            "state": self.state,
            "uptimeSeconds": time.monotonic() - self._opened,
            **self._puts.stats(),
            "commitLatency": self._commit_latency.to_json(),
            "flushLatency": self._running.flusher.latency.to_json(),
            "commitLogMinOffset": log.min_offset,
            "commitLogMaxOffset": log.max_offset,
            "commitLogFlushedOffset": log.flushed_offset,
            **self._running.transactions.stats(),
            "dispatchBehindBytes": self._running.dispatcher.behind_bytes,
            "diskUsedRatio": self._admission.disk_used_ratio,
            "clockBehindSeconds": self._running.appender.time.behind_ms / 1000,
            "queues": {
                topic: {str(queue_id): list(bounds) for queue_id, bounds in numbers.items()}
                for topic, numbers in ranges.items()
            },
        }

    def close(self) -> None:
        """Take no more messages, bring everything to disk, and let others have the store.

        A store that failed is left as after a crash: the next opening recovers it.

        Raises:
            StoreWriteError: something could not be brought to disk; the store is closed all the
                same, and recovered when it is opened again.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            clean = False
            try:
                self._running.appender.close("The store is closing. Put again when it is open.")
                if self._admission.failure is None:
                    self._running.flush()
                    self._running.transactions.save()
                    clean = True
            finally:
                self._running.close()
                self._store.close(clean=clean)

    # ---- parts ---------------------------------------------------------------------------------

    def _check_state(self) -> None:
        self._require_alive()
        self._admission.check_state()

    def _require_alive(self) -> None:
        """Refuse what would change a store that others may have by now, or that failed."""
        if self._closed:
            raise RefusedError("The store is closed.", "SERVICE_NOT_AVAILABLE")
        if self._admission.failure is not None:
            self._admission.check_state()
