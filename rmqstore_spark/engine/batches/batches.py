"""Spark's batches: appends the stages of a batch to the log, as a whole and once.

    ask the ledger what the log knows of the batch
    under the append lock:
        ask the ledger -> claim and compare the stages -> place them, and the marker after them
        -> write hidden -> flush -> publish the head -> flush
        -> add to the ledger -> dispatch to queues and index
    remove the stages, and wait for a slave if the store is a SYNC_MASTER

Until the head is published, the log ends before the block, for every reader and for a broker's
recovery (`batch_block`). After that, the log holds all of it, and the marker as well, which makes a
repeated commit do nothing (`ledger`). A commit that fails earlier leaves the log, the queues'
offsets and the stages as they were. If publishing itself fails, the outcome is unknown: the store
accepts nothing more, and its next start finds out from what is on disk.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import (
    CommitRequest,
    CommitResult,
    Content,
    StageInfo,
    WriterId,
    topics_with_most_rows,
)
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import (
    MARKER_TOPIC,
    Committed,
    Marker,
    is_identity,
    marker_body,
)
from rmqstore_spark.engine.batches.markers import Markers
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staging import Staging, StagingLimits
from rmqstore_spark.engine.counters import Failures, Histogram
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Periodic
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.placement import TooLargeError
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.topics import PERM_READ
from rmqstore_spark.errors import OptionError, RefusedError, StoreWriteError
from rmqstore_spark.files.names import OWN_FOLDER
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC

_log = logging.getLogger(__name__)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_INTERVAL_MS: Final = 1000
_SAVE_EVERY: Final = 60  # intervals


class Batches:
    """The batches of a store, each committed as a whole and once. Thread-safe.

    Args:
        store: the open store. The first commit creates the markers' topic.
        admission: checks the store's state, staged blocks, and the queues of a commit.
        appender, flusher: append to the log, and flush it.
        durability: waits for slaves.
        puts: counts the messages of commits too.

    Attributes:
        latency: how long commits took.
    """

    def __init__(
        self,
        store: OpenStore,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
        durability: Durability,
        puts: Puts,
    ) -> None:
        config = store.config
        self._role = store.role
        self._log = store.log
        self._topics = store.topics
        self._admission = admission
        self._appender = appender
        self._flusher = flusher
        self._durability = durability
        self._puts = puts
        self.latency = Histogram()
        limits = StagingLimits(
            config.staging_max_bytes,
            config.staging_max_stage_bytes,
            config.staging_memory_bytes,
            config.staging_timeout,
        )
        self._staging = Staging(
            Path(store.path, OWN_FOLDER, "staging"),
            admission,
            limits,
            store.clock,
            indexed=config.message_index_enable,
        )
        path = os.path.join(store.path, OWN_FOLDER, "ledger.json")
        self._ledger = Ledger.open(path, Markers(store.path), store.log.max_offset)
        self._save_ledger()
        self._host_text, self._host = config.host
        self._max_bytes = config.max_transaction_bytes
        self._commits = 0
        self._commit_failures = Failures()
        self._intervals = 0
        self._tending = Periodic("rmqstore-staging", _INTERVAL_MS, self._tend, admission.health)

    def staged_topics(self, stages: Sequence[StageInfo]) -> Collection[str]:
        """Return the topics of stages; nothing of a stage that is not here."""
        return self._staging.topics(stages)

    def begin_stage(self, stage_id: str, owner: str = "", identity: str = "") -> Stage:
        """Begin to stage the records of one task attempt; see `Staging.begin`.

        Raises:
            RefusedError: the id is invalid, in use or aborted, or the store accepts nothing.
        """
        with self._staging.failures.counting():
            self._admission.check_state()
            return self._staging.begin(stage_id, owner, identity)

    def commit(self, request: CommitRequest, identity: str = "") -> CommitResult:
        """Commit a batch, as a whole and once: nothing is done if it is known to be committed.

        Args:
            request: what to commit.
            identity: the identity in the client's certificate; empty if there is none.

        Raises:
            RefusedError: nothing was committed, and the stages are as before. Also if the writer's
                number was used for something else, or belongs to another client. But with
                FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE, the batch is committed, and no slave
                has it in time: the same commit can be repeated.
            StoreWriteError: the outcome is unknown until the store has been opened again. Then the
                same commit can be repeated.
        """
        with self._commit_failures.counting():
            self._admission.check_state()
            begin = time.monotonic()
            done = self._commit(request, identity)
            self._make_marker_topic()  # later than the topics of the batch, which need their room
            if done.status == "COMMITTED":
                self._puts.count(done.rows, sum(stage.bytes for stage in request.stages))
                self.latency.observe(time.monotonic() - begin)
            return done

    def abort(self, stage_ids: Iterable[str], identity: str = "") -> None:
        """Remove stages, which cannot be used again; see `Staging.abort`."""
        self._staging.abort(stage_ids, identity=identity)

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        return {
            "stages": len(self._staging),
            "stagedBytes": self._staging.staged_bytes,
            "stagedMemoryBytes": self._staging.memory.used,
            "commits": self._commits,
            "stageFailures": self._staging.failures.to_json(),
            "commitFailures": self._commit_failures.to_json(),
        }

    def save(self) -> None:
        """Save the ledger, once nothing is committed any more."""
        self._ledger.save()

    def save_before_expiry(self) -> None:
        """Save the ledger with all commits that the log has, also those of a master.

        Raises:
            RmqStoreError: the log cannot be read, or the ledger cannot be written.
        """
        if self._role.follows:
            self._ledger.catch_up()
        self._ledger.save()

    def catch_up(self) -> None:
        """Learn all commits that the log has; nothing is committed meanwhile.

        Raises:
            RmqStoreError: the log cannot be read.
        """
        self._ledger.catch_up()

    def close(self) -> None:
        """Stop the thread, and remove all stages."""
        self._tending.close()
        self._staging.close()

    def _make_marker_topic(self) -> None:
        """Create the markers' topic for brokers; nothing here needs it."""
        if MARKER_TOPIC not in self._topics:
            try:
                self._topics.create(MARKER_TOPIC, 1, 1, PERM_READ)
            except (OptionError, StoreWriteError) as error:
                _log.warning("The topic %s could not be created yet: %s", MARKER_TOPIC, error)

    def _tend(self) -> None:
        self._staging.expire()
        self._log.expect(self._staging.staged_bytes)
        self._intervals += 1
        if self._intervals % _SAVE_EVERY == 0:
            self._save_ledger()

    def _save_ledger(self) -> None:
        try:
            self._ledger.save()
        except StoreWriteError as error:
            _log.warning("The ledger of commits could not be written yet: %s", error)

    # ---- a commit -----------------------------------------------------------------------------

    def _commit(self, request: CommitRequest, identity: str) -> CommitResult:
        request.check()
        if not is_identity(identity):
            text = (
                f"{identity[:64]!r}... is not the name of a client: it has at most 2048 "
                "printable characters."
            )
            raise RefusedError(text, PutStatus.NO_PERMISSION)
        writer = request.writer
        content = replace(request.content, topics=self._staging.topics(request.stages))
        recalled = self._ledger.recall(writer)
        with self._appender.appending(patient=True):
            self._admission.check_state()
            begin = self._log.max_offset
            done = self._ledger.find(writer, content, identity, recalled)
            stages = [] if done else self._claim(request, identity)
            committed = done or self._append(writer, content, stages, identity)
            end = self._log.max_offset
        if done:
            ids = [info.stage_id for info in request.stages]
            self._staging.abort(ids, f"not needed: {writer} had been committed", identity)
        else:
            self._commits += 1
            self._staging.finish(stages)
        self._durability.await_commit(begin, end)
        rows, first = committed.content.rows, committed.physical_offset
        return CommitResult("ALREADY_COMMITTED" if done else "COMMITTED", rows, first)

    def _claim(self, request: CommitRequest, identity: str) -> list[Stage]:
        total = sum(info.bytes for info in request.stages)
        if total > self._max_bytes:
            raise RefusedError(
                f"{request.writer} has {total} bytes, and maxTransactionBytes is "
                f"{self._max_bytes}. Write less at a time, raise it in the store's "
                "configuration, or use more tasks that each commit alone (atomic=false).",
                PutStatus.MESSAGE_ILLEGAL,
            )
        return self._staging.claim(request.stages, identity)

    def _append(
        self, writer: WriterId, content: Content, stages: Sequence[Stage], identity: str
    ) -> Committed:
        """Append stages, whose content is given, and their marker. Needs the append lock."""
        # Later than every time in the checkpoint, whose times must never cover a hidden block.
        stored = self._appender.time.stamp(later=True)
        made = BatchBlock(self._log, self._appender.next_offsets, stored, self._host)
        with closing(made) as block:
            return self._append_block(writer, content, stages, block, identity)

    def _append_block(
        self,
        writer: WriterId,
        content: Content,
        stages: Sequence[Stage],
        block: BatchBlock,
        identity: str,
    ) -> Committed:
        try:
            for stage in stages:
                block.add(stage)
            assert block.rows == content.rows, (
                f"{writer} has {content.rows} rows, and its stages hold {block.rows}"
            )
            # Creates topics, so it comes last. Where delayed messages wait is not for clients;
            # `Admission.scheduled` put them there.
            routes = (route for stage in stages for route in stage.routes)
            self._admission.check_routes(r for r in routes if r.topic != SCHEDULE_TOPIC)
            # A batch without rows begins where the log ends before its marker.
            begin = block.begin if block.rows else block.end
            size, stored = block.bytes, block.timestamp
            ids = tuple(stage.stage_id for stage in stages)
            body = marker_body(writer, content, size, begin, stored, ids, identity)
            marker = Marker(writer, body, self._host_text, block.timestamp)
            (marker_offset,) = self._appender.next_offsets(marker.routes).tolist()
            block.add(marker)
            self._write(block)
        except BaseException as error:
            self._staging.give_back(stages)
            if isinstance(error, TooLargeError):
                text = f"{writer} cannot be committed: {error}."
                raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL) from error
            raise
        self._publish(block, writer)
        kept = replace(content, topics=topics_with_most_rows(content.topics))
        committed = Committed(writer.number, kept, size, begin, block.last, stored, identity)
        self._ledger.add(writer, committed, marker_offset)
        self._dispatch(block)
        return committed

    def _write(self, block: BatchBlock) -> None:
        """Write and flush the block, hidden. If that fails, erase what was written.

        Raises:
            RefusedError: the write or the flush failed.
        """
        try:
            self._appender.reserve_until(block.end)
            block.write()
            reach("commit.before_sync")
            self._flusher.flush()
            reach("commit.before_publish")
        except StoreWriteError as error:
            if error.errno not in _NO_ROOM or self._log.failure is not None:
                self._admission.fail(error)
            self._take_back(block)
            text = f"Nothing was committed: {error}"
            raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error
        except AssertionError:
            # Nothing more is written in a wrong state. The next start cuts the hidden block off.
            raise
        except BaseException:
            self._take_back(block)
            raise

    def _take_back(self, block: BatchBlock) -> None:
        try:
            if block.erase():
                self._flusher.flush()
            self._log.remove_unused()
        except StoreWriteError as error:
            self._admission.fail(error)

    def _publish(self, block: BatchBlock, writer: WriterId) -> None:
        try:
            block.publish()
            assert self._log.max_offset == block.end, (
                f"{writer} ends at {block.end}, and the log at {self._log.max_offset}"
            )
            reach("commit.after_publish")
            self._appender.published(block.timestamp)
            self._flusher.flush()
            reach("commit.after_sync")
        except StoreWriteError as error:
            self._admission.fail(error)
            raise StoreWriteError(
                f"It is unknown whether {writer} was committed: {error} Restart the store "
                "process, then commit again: records that are in the log by then are not "
                "written twice."
            ) from error

    def _dispatch(self, block: BatchBlock) -> None:
        """Hand a committed block to queues and index. If that fails, the next start does it."""
        try:
            for appended, next_offsets in block.appended():
                self._appender.appended(appended, next_offsets)
            reach("commit.after_dispatch")
        except Exception as error:  # noqa: BLE001 - the batch is committed, whatever comes now
            self._admission.fail(error)
