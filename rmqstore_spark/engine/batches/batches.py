"""Spark's batches: appends the stages of a batch to the log, as a whole and once.

    one commit at a time:
        ask the ledger -> claim and compare the stages
        under the append lock:   reserve the block's place, the queues' offsets and a time
        without it:              place the records, and the marker after them
                                 -> write hidden -> flush
        under the append lock:   fill up the room before the block -> publish its head
        without it:              flush -> add to the ledger -> wait for queues and index
    remove the stages, and wait for a slave if the store is a SYNC_MASTER

Others append before the block until it is published, and behind it after that. Small batches leave
no room, so others wait for them. Until the head is published, the log ends before the block, for
every reader and for a broker's recovery (`batch_block`). After that, the log holds all of it, and
the marker as well, which makes a repeated commit do nothing (`ledger`). A commit that fails earlier
leaves the log, the queues' offsets and the stages as they were. If publishing itself fails, the
outcome is unknown: the store accepts nothing more, and its next start finds out from what is on
disk.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
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
from rmqstore_spark.engine.append.appender import Appender, Commit
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import (
    MARKER_ROUTE,
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

_LARGE: Final = 8 << 20
"""Bytes of a batch that leaves room for others. To wait for a smaller one takes milliseconds."""
_ROOM_PART: Final = 64
"""The part of a batch's bytes that others certainly have room for."""
_MOST_ROOM: Final = 64 << 20
_FIRST_PACE: Final = 1 << 20


@dataclass(frozen=True)
class _Written:
    """A batch that is on disk.

    Attributes:
        block: its records.
        committed: the commit.
        begin: where the log ended before all that was appended since the commit began.
    """

    block: BatchBlock
    committed: Committed
    begin: int


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
        self._committing = threading.Lock()
        self._segment_size = store.log.segment_size
        self._commits = 0
        self._commit_failures = Failures()
        self._pace = _FIRST_PACE  # bytes in a millisecond of a large batch, until it is published
        self._grown = (0, 0)  # bytes that were put until the last interval, and in it
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
                self._puts.count_batch(done.rows, sum(stage.bytes for stage in request.stages))
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

    @contextmanager
    def nothing_committed(self) -> Iterator[None]:
        """Let no commit run: wait for one that does, and let others wait."""
        with self._committing:
            yield

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
        put = self._puts.bytes
        self._grown = put, put - self._grown[0]
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
        written, stages = None, list[Stage]()
        with self._committing:
            self._admission.check_state()
            begin = end = self._log.max_offset
            done = self._ledger.find(writer, content, identity, recalled)
            if done is None:
                stages = self._claim(request, identity)
                written = self._append(writer, content, stages, identity)
        if written is not None:
            self._commits += 1
            with closing(written.block):
                self._await_queues(written.block)
            self._staging.finish(stages)
            begin, end, committed = written.begin, written.block.end, written.committed
        else:
            assert done is not None, f"{writer} was neither committed before nor now"
            committed = done
            ids = [info.stage_id for info in request.stages]
            self._staging.abort(ids, f"not needed: {writer} had been committed", identity)
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
    ) -> _Written:
        """Append stages, whose content is given, and their marker. Returns once they are on disk.

        Their portions are still read then, to put the records into queues and index.
        """
        with ExitStack() as undo:
            undo.callback(self._staging.give_back, stages)
            commit = self._reserve(stages)
            undo.callback(self._give_up, commit)
            block = BatchBlock(commit, self._segment_size, self._host)
            undo.callback(block.close)
            undo.callback(self._take_back, block)
            begun = time.monotonic()
            with self._failing_if_wrong():
                committed, marker_offset = self._place(block, writer, content, stages, identity)
                self._write(block)
            # Room was enough for the block, so it is published whatever has become scarce since.
            with self._appender.ending_commit():
                self._admission.require_alive()
                undo.pop_all()
                self._publish(commit, block, writer)
        self._finish(block, writer)
        if block.bytes >= _LARGE:
            taken = max(1, round((time.monotonic() - begun) * 1000))
            self._pace = max(1, (self._pace + block.bytes // taken) // 2)
        self._ledger.add(writer, committed, marker_offset)
        return _Written(block, committed, commit.begin)

    @contextmanager
    def _failing_if_wrong(self) -> Iterator[None]:
        """Let the store fail, as the append lock does, if an invariant does not hold."""
        try:
            yield
        except AssertionError as error:
            wrong = self._admission.health.fail_wrong_state(error)
            status = PutStatus.SERVICE_NOT_AVAILABLE
            raise RefusedError(str(wrong), status, is_open=True) from error

    def _reserve(self, stages: Sequence[Stage]) -> Commit:
        """Reserve the place of a block, with room before it for as much as is put meanwhile."""
        size = sum(stage.info.bytes for stage in stages)
        room = span = 0
        if size >= _LARGE:
            span = size // self._pace
            put = 2 * max(0, self._grown[1]) * span // _INTERVAL_MS
            room = min(size // _ROOM_PART + put, _MOST_ROOM, self._segment_size // 4)
        routes = {route for stage in stages for route in stage.routes} | {MARKER_ROUTE}
        with self._appender.appending(patient=True):
            self._admission.check_state()
            return self._appender.begin_commit(routes, room, span)

    def _give_up(self, commit: Commit) -> None:
        """Let others append in place of a block that is not written, or erased."""
        if self._admission.failure is not None:
            return  # it may not be erased, and nothing is appended any more
        try:
            with self._appender.ending_commit():
                self._appender.give_up_commit(commit)
        except StoreWriteError as error:
            self._admission.fail(error)

    def _place(
        self,
        block: BatchBlock,
        writer: WriterId,
        content: Content,
        stages: Sequence[Stage],
        identity: str,
    ) -> tuple[Committed, int]:
        """Place the records of stages, and their marker.

        Returns:
            The commit, and the queue offset of its marker.
        """
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
            marker_offset = block.next_offsets[MARKER_ROUTE]
            block.add(Marker(writer, body, self._host_text, stored))
        except TooLargeError as error:
            text = f"{writer} cannot be committed: {error}."
            raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL) from error
        kept = replace(content, topics=topics_with_most_rows(content.topics))
        last, number = block.last, writer.number
        return Committed(number, kept, size, begin, last, stored, identity), marker_offset

    def _write(self, block: BatchBlock) -> None:
        """Write and flush the block, hidden. If that fails, erase what was written.

        Raises:
            RefusedError: the write or the flush failed.
        """
        try:
            with self._appender.appending(patient=True):
                self._appender.reserve_until(block.end)
            block.write()
            reach("commit.before_sync")
            block.flush()
            reach("commit.before_publish")
        except StoreWriteError as error:
            if error.errno not in _NO_ROOM or self._log.failure is not None:
                self._admission.fail(error)
            self._erase(block)
            text = f"Nothing was committed: {error}"
            raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error

    def _take_back(self, block: BatchBlock) -> None:
        """Erase what was written of a block that is not published, unless the store has failed.

        Nothing more is written in a wrong state. The next start cuts the hidden block off.
        """
        if self._admission.failure is None:
            self._erase(block)

    def _erase(self, block: BatchBlock) -> None:
        try:
            if block.erase():
                block.flush()
        except StoreWriteError as error:
            self._admission.fail(error)
        except BaseException as error:
            # What is left would come back to life once other records end where it begins.
            text = f"a batch that was not committed could not be erased: {error!r}"
            self._admission.fail(StoreWriteError(text))
            raise

    def _publish(self, commit: Commit, block: BatchBlock, writer: WriterId) -> None:
        """Make the block part of the log. Needs the append lock."""
        try:
            self._appender.publish_commit(commit, block.end, block.next_offsets, block.jobs())
            assert self._log.max_offset == block.end, (
                f"{writer} ends at {block.end}, and the log at {self._log.max_offset}"
            )
            reach("commit.after_publish")
        except StoreWriteError as error:
            block.close()
            raise self._unknown(writer, error) from error
        except AssertionError:
            block.close()
            raise
        except BaseException as error:
            block.close()
            self._admission.fail(StoreWriteError(f"{writer} is published in part: {error!r}"))
            raise

    def _finish(self, block: BatchBlock, writer: WriterId) -> None:
        """Flush the head of the published block."""
        try:
            self._flusher.flush()
            reach("commit.after_sync")
        except StoreWriteError as error:
            block.close()
            raise self._unknown(writer, error) from error

    def _unknown(self, writer: WriterId, error: StoreWriteError) -> StoreWriteError:
        self._admission.fail(error)
        return StoreWriteError(
            f"It is unknown whether {writer} was committed: {error} Restart the store "
            "process, then commit again: records that are in the log by then are not "
            "written twice."
        )

    def _await_queues(self, block: BatchBlock) -> None:
        """Wait for queues and index, which read the stages. If that fails, the next start does."""
        try:
            if self._appender.await_dispatched(block.end):
                reach("commit.after_dispatch")
        except StoreWriteError as error:
            self._admission.fail(error)
