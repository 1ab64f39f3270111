"""Commits batches: appends the stages of a batch to the log, as a whole and once.

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
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import (
    CommitRequest,
    CommitResult,
    Content,
    WriterId,
    topics_with_most_rows,
)
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.batches.batch_block import BatchBlock, Stamp
from rmqstore_spark.engine.batches.committed import Committed
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import Marker, marker_body
from rmqstore_spark.engine.batches.owners import is_identity
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staging import Staging
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.placement import TooLargeError
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Committer:
    """Commits batches, one at a time. Thread-safe.

    Args:
        appender: appends to the log.
        flusher: flushes the log.
        durability: waits for slaves.
        staging: the stages of the store.
        ledger: the committed batches.
        admission: checks the store's state, and the queues once more: a topic may have been deleted
            after the rows were staged.
        config: the store's configuration.
    """

    def __init__(
        self,
        appender: Appender,
        flusher: FlushService,
        durability: Durability,
        staging: Staging,
        ledger: Ledger,
        admission: Admission,
        config: StoreConfig,
    ) -> None:
        self._appender = appender
        self._flusher = flusher
        self._durability = durability
        self._staging = staging
        self._ledger = ledger
        self._admission = admission
        self._host_text, self._host = config.host
        self._max_bytes = config.max_transaction_bytes
        self.commits = 0

    def commit(self, request: CommitRequest, identity: str = "") -> CommitResult:
        """Commit a batch, unless it is known to be committed.

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
            begin = self._appender.log.max_offset
            done = self._ledger.find(writer, content, identity, recalled)
            stages = [] if done else self._claim(request, identity)
            committed = done or self._append(writer, content, stages, identity)
            end = self._appender.log.max_offset
        if done:
            ids = [info.stage_id for info in request.stages]
            self._staging.abort(ids, f"not needed: {writer} had been committed", identity)
        else:
            self.commits += 1
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
        stamp = Stamp(self._appender.time.stamp(later=True), self._host)
        block = BatchBlock(self._appender.log, self._appender.next_offsets, stamp)
        try:
            return self._append_block(writer, content, stages, block, identity)
        finally:
            block.close()

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
            size, time = block.bytes, block.timestamp
            ids = tuple(stage.stage_id for stage in stages)
            body = marker_body(writer, content, size, begin, time, ids, identity)
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
        committed = Committed(writer.number, kept, size, begin, block.last, time, identity)
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
            if error.errno not in _NO_ROOM or self._appender.log.failure is not None:
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
            self._appender.log.remove_unused()
        except StoreWriteError as error:
            self._admission.fail(error)

    def _publish(self, block: BatchBlock, writer: WriterId) -> None:
        try:
            block.publish()
            assert self._appender.log.max_offset == block.end, (
                f"{writer} ends at {block.end}, and the log at {self._appender.log.max_offset}"
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
