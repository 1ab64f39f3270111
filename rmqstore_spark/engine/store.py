"""A store that is open for writing: `with StoreWriter.open(path) as store: store.put(block)`.

    put:  state -> check_block -> topics -> [append lock: place, number, stamp, write, dispatch]
          -> flush (under SYNC_FLUSH: one flush for all waiting puts)

One process writes a store, with any number of threads. (Upstream: DefaultMessageStore.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqstore_spark.consensus.driver.group import QueueEndsTold
from rmqstore_spark.engine.append.appender import SinglePlace
from rmqstore_spark.engine.append.later_puts import Awaits
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.queues import QueueWatcher
from rmqstore_spark.engine.expiry.expiry import Expirable
from rmqstore_spark.engine.group.member_thread import MemberThread
from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.open_store import OpenStore, open_store
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.engine.recovery.queues_and_index import Progress
from rmqstore_spark.engine.role_changes import RoleChanges
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.engine.tables.queue_ends import QueueEnds
from rmqstore_spark.engine.tables.topics import TopicChange, TopicConfig
from rmqstore_spark.engine.topic_changes import TopicChanges
from rmqstore_spark.engine.workers import Workers
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import TRANS_GROUP
from rmqstore_spark.layout.record.block import Block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import record_columns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rmqstore_spark.consensus.driver.protection import MemberProtection


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class StoreWriter:
    """The single writer of a store. Thread-safe; created by `open`.

    Attributes:
        path, log_folder: the store directory, and the folder of the CommitLog.
        config: the store's configuration.
        clock: returns milliseconds since the epoch.
        recovery: what recovery found and did when the store was opened.
        role: what the store may do now.
        published: where the log ends for readers, and how to wait for more.
        topics: the store's topics.
        groups: the consumer groups that RocketMQ's clients use.
        consumer_offsets: the offsets of consumer groups.
        batches: the batches of Spark: stages and commits them.
        slaves: the slaves that have a copy of the log.
        puts: stores blocks of records.
        replica: appends the bytes of a master's log, if the store is a slave.
        transactions: holds half messages, and ends their transactions.
    """

    def __init__(self, store: OpenStore) -> None:
        self.config = store.config
        self.topics = store.topics
        self.groups = store.groups
        self.consumer_offsets = store.consumer_offsets
        self.path = store.path
        self.log_folder = store.log_folder
        self.clock = store.clock
        self.published = store.log.published
        self.recovery = store.recovery
        self._store = store
        self._closing = threading.Lock()
        self._configuring = threading.Lock()
        self.role = store.role
        self._workers = workers = Workers(store)
        self._admission = workers.admission
        self._appender = workers.appender
        self.batches = workers.batches
        self.slaves = workers.slaves
        self.transactions = workers.transactions
        self.replica = workers.replica()
        self.puts = workers.puts
        self._topic_changes = TopicChanges(store, workers)
        self._role_changes = RoleChanges(store, workers)
        if store.member is not None:
            store.member.serve(self.told_queue_ends, store.queue_ends)
        if store.role.is_elected:
            store.role.watch(self)
            self._follow_role()

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
        protection: MemberProtection | None = None,
    ) -> StoreWriter:
        """Open a store for writing and recover it; create it if it does not exist.

        Args:
            path: the store directory.
            config: the store's configuration.
            clock: returns milliseconds since the epoch. It may go back; storeTimestamps do not.
            progress: called with the current step of recovery, the bytes done and the total bytes.
            cut: cut the log at damage that would otherwise stop the opening. The bytes that are cut
                off are saved.
            rebuild: rebuild all queues and the index from the log, in case their files are damaged.
            protection: of a member of a DLedger group; None: as the configuration says, which must
                ask for no accounts then.

        Raises:
            OptionError: the folder holds something else.
            StoreLockedError: another process has the store open for writing.
            UnsupportedStoreError: the store is of a kind that can only be read.
            CorruptStoreError: the store has damage that no crash explains.
            StoreWriteError: a file could not be written.
        """
        store = open_store(
            os.path.abspath(os.fspath(path)), config or StoreConfig(),
            clock=clock, progress=progress, cut=cut, rebuild=rebuild, protection=protection,
        )  # fmt: skip
        try:
            return cls(store)
        except BaseException:
            store.close(clean=False)
            raise

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_busy(self) -> bool:
        """Whether something is being appended, so that a put might wait."""
        return self._appender.lock.held_since is not None or self._appender.commit is not None

    @property
    def held_topics(self) -> frozenset[str]:
        """The topics of the batch that is being committed: messages for its queues wait."""
        commit = self._appender.commit
        return frozenset() if commit is None else commit.topics

    def await_commit(self, seconds: float) -> None:
        """Wait until the batch that is being committed is stored, or given up, but only so long."""
        commit = self._appender.commit
        if commit is not None:
            commit.reserved.over.wait(seconds)

    @property
    def published_end(self) -> int:
        """The physical offset up to which the log holds whole records that readers may see."""
        return self._store.log.max_offset

    def queue_reader(self) -> QueueReader:
        """Return a reader of the queues and their records; the caller closes it."""
        return QueueReader(self._store)

    def watch_queues(self, watcher: QueueWatcher | None) -> None:
        """Tell a watcher, in place of the last one, when queues have grown; None: nobody."""
        self._store.queues.watcher = watcher

    def published_log(self) -> PublishedLog:
        """Return a reader of the log's bytes that readers may see; the caller closes it."""
        return PublishedLog(self._store.log)

    @property
    def state(self) -> str:
        """One of `status.STATES`. The store accepts messages only when RUNNING."""
        return self._admission.state

    def raise_failure(self) -> None:
        """Raise the error that made it unsafe to continue, if there is one."""
        if self._admission.failure is not None:
            raise self._admission.failure

    @property
    def put_messages(self) -> int:
        """How many messages were stored since the store was opened."""
        return self.puts.messages

    def reconfigure(self, config: StoreConfig) -> None:
        """Follow another configuration until the store is closed. The role stays.

        Args:
            config: differs in keys that say what clients may do: whether they may create topics
                and groups, and `brokerPermission`.
        """
        with self._configuring:
            self._apply(config)

    def role_changed(self) -> None:
        """Follow the configuration of another role; see `RoleWatcher`."""
        self._follow_role()

    def _follow_role(self) -> None:
        with self._configuring:
            self._apply(self.config)

    def _apply(self, config: StoreConfig) -> None:
        self.config = self.role.applied(config)
        self._admission.reconfigure(self.config)

    # ---- topics --------------------------------------------------------------------------------

    def create_topic(self, name: str, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Create a topic; see `TopicChanges.create`."""
        return self._topic_changes.create(name, **settings)

    def create_topics(self, names: Sequence[str]) -> None:
        """Create topics with default numbers of queues, as `create_topic` does: all or none."""
        self._topic_changes.create_all(names)

    def update_topic(self, name: str, **settings: Unpack[TopicChange]) -> TopicConfig:
        """Change the given settings of a topic; see `TopicTable.update`."""
        return self._topic_changes.update(name, **settings)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; see `delete_topics`."""
        self.delete_topics([name])

    def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics, all of them or none; see `TopicChanges.delete`."""
        self._topic_changes.delete(names)

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        """The physical offset up to which records of a topic are deleted, by topic."""
        return self._store.deleted.ends

    # ---- consumer groups -----------------------------------------------------------------------

    def commit_offsets(
        self, group: str, offsets: Mapping[str, Mapping[int, int]], *, reset: bool = False
    ) -> int:
        """Move the offsets of a consumer group; see `ConsumerOffsets.commit` and `.reset`.

        Args:
            group: its name.
            offsets: the next offsets to consume, by topic and queueId.
            reset: set the offsets, also to lower ones.

        Returns:
            How many offsets have changed.

        Raises:
            OptionError: the group is the store's own.
            RefusedError: the store is closed or has failed, or a reset names no offset of a queue.
        """
        if group == TRANS_GROUP:
            raise OptionError(
                f"The offsets of {TRANS_GROUP} tell which transactions wait: only the store moves "
                "them."
            )
        self._admission.require_alive()
        self._workers.drain()  # readers of the log are ahead of the queues
        table = self._store.consumer_offsets
        return table.reset(group, offsets) if reset else table.commit(group, offsets)

    # ---- messages ------------------------------------------------------------------------------

    def put(self, data: U1, *, wait: bool = True, units: Sequence[int] | None = None) -> PutResult:
        """Store a block of encoded records: all of them or none.

        Args:
            data: uint8, see `layout.record.block`. The store may stamp a writable array in place.
                The caller must not change it afterwards.
            wait: under SYNC_FLUSH, return when the records are on disk. If False, call `settle` to
                wait for that.
            units: how many records each unit has, in order. The records of a unit, such as the
                messages of a SEND_BATCH, lie in one segment. None: each record is a unit.

        Raises:
            ValueError: the units have another number of records than the block.
        """
        return self.puts.put(data, wait=wait, units=units)

    def put_written(
        self, block: Block, *, patient: bool = True, later: Awaits | None = None
    ) -> PutResult:
        """Store records that this process has written and checked: all of them or none.

        Args:
            block: sound records, none with a delay, for topics that exist. The store stamps them in
                place.
            patient: wait for a commit to the same queues.
            later: takes the outcome of a put that is PUT_OK here; see `Puts.put_block`.

        Raises:
            HeldUpError: there is one, and the caller is not patient.
        """
        return self.puts.put_block(
            lambda: self._admission.written(block), patient=patient, later=later
        )

    def put_single(self, record: SingleRecord) -> SinglePlace | PutResult | None:
        """Store a record that this process has written, if nothing is in its way.

        Returns:
            Its place, if the outcome is PUT_OK, or another outcome; None if nothing was done, and
            `put_written` is to be asked.
        """
        return self.puts.put_single(record)

    def put_all(self, blocks: Sequence[U1], *, are_units: bool = False) -> list[PutResult]:
        """Store blocks one after the other, each on its own, and wait for the disk once.

        Args:
            blocks: as `put` takes them.
            are_units: whether the records of each block lie in one segment.

        Returns:
            The outcome of each block. A transient refusal is the last outcome: the blocks after it
            are not stored, and have none.
        """
        return self.puts.put_all(blocks, are_units=are_units)

    def put_batch(self, batch: pa.RecordBatch) -> PutResult:
        """Encode and store messages.

        Args:
            batch: columns of RECORD_COLUMNS, without nulls. topic and body are required, the others
                have defaults. Columns that the store sets (offsets, storeTimestamp, storeHost) are
                ignored.

        Raises:
            OptionError: a column is missing, or holds a value that no record can.
        """
        columns = record_columns(batch, self._store.clock(), self.config.host[0])
        return self.put(encode_records(columns).data)

    def queues_later(self) -> AbstractContextManager[None]:
        """Let puts of this thread return before their messages are in queues and index.

        The caller tells its clients of them, and calls `fill_queues` then. Who needs the queues
        before that fills them itself.
        """
        return self._workers.dispatcher.putting_off()

    def fill_queues(self) -> None:
        """Put messages into queues and index for which there was no time; see `queues_later`."""
        self._workers.dispatcher.dispatch_now()

    def settle(self, result: PutResult) -> PutResult:
        """Wait for the disk and slaves, as configured; return the result after that."""
        return self.puts.settle(result)

    # ---- expiry --------------------------------------------------------------------------------

    def expirable(self, before: int) -> Expirable:
        """Return what `expire` would remove, or has still to remove; see `Expiry.expirable`."""
        return self._workers.expiry.expirable(before)

    def expire(self, before: int) -> None:
        """Begin to remove the segments all of whose messages were stored before a time.

        This continues in the background; `expirable` tells how far it is.

        Args:
            before: milliseconds since the epoch.

        Raises:
            RefusedError: the store is closed or has failed.
        """
        self._admission.require_alive()
        self._workers.expiry.order(before)

    def reading(self, path: str) -> AbstractContextManager[None]:
        """Mark a file of the store as being read: expiry waits for that; see `SegmentUses`.

        Args:
            path: the file's path, relative to the store.
        """
        return self._workers.expiry.reading(path)

    # ---- the role ------------------------------------------------------------------------------

    def promote(self, *, waits_for_slaves: bool = False) -> int:
        """Make a slave the master; see `RoleChanges.promote`. Nobody follows with it any more."""
        with self._closing:
            end = self._role_changes.promote(self.replica, waits_for_slaves=waits_for_slaves)
            self._follow_role()
        return end

    def demote(self, master: str, master_broker: str = "") -> int:
        """Make a master a slave; see `RoleChanges.demote`. The caller follows that master then."""
        with self._closing:
            end = self._role_changes.demote(master, master_broker)
            self.replica = self._workers.replica()
            self._follow_role()
        return end

    @property
    def queue_ends(self) -> QueueEnds:
        """Where queues end of which a member of a group never had a message."""
        return self._store.queue_ends

    def told_queue_ends(self) -> QueueEndsTold:
        """Return where queues end, for a slave or another member of the group."""
        ends, log_end = self._store.queue_ends, self._store.log.max_offset
        self._workers.drain()
        told = ends.with_those_of(self._store.queues.ranges())
        return QueueEndsTold(not ends.are_lacking, told, log_end)

    @property
    def member(self) -> MemberThread:
        """The member of a group that this store is."""
        assert self._store.member is not None, "the store is not a member"
        return self._store.member

    # ---- the rest ------------------------------------------------------------------------------

    def flush(self) -> dict[str, int]:
        """Flush log, queues, index and checkpoint.

        Returns:
            minOffset, maxOffset and flushedOffset of the CommitLog.

        Raises:
            StoreWriteError: the flush failed, and the store accepts no more messages; or there is
                no room for queues and index.
        """
        self._workers.flush()
        log = self._store.log
        return {
            "minOffset": log.min_offset,
            "maxOffset": log.max_offset,
            "flushedOffset": log.flushed_offset,
        }

    def stats(self) -> dict[str, Any]:
        """Return the store's metrics as JSON values."""
        return self._workers.stats()

    def close(self) -> None:
        """Stop accepting messages, flush everything, and release the store.

        A store that has failed is left unclean: the next opening recovers it.

        Raises:
            StoreWriteError: a file could not be flushed. The store is closed anyway, and the next
                opening recovers it.
        """
        with self._closing:
            if self._admission.state == "CLOSED":
                return
            clean = False
            try:
                with self.batches.nothing_committed():
                    self._admission.close()
                    self._appender.lock.finish()
                self._workers.delivery.stop()
                self._workers.checks.stop()
                has_all = self._workers.leave_group()
                if self._admission.failure is None:
                    self.replica.erase_hidden()
                    self._workers.flush()
                    self.batches.save()
                    self._workers.delivery.save()
                    self.transactions.save()
                    clean = has_all
            finally:
                self._workers.close()
                self._store.close(clean=clean)
