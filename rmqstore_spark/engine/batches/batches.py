"""Spark's batches: stages their records, and commits each batch as a whole and once.

    one commit at a time:
        ask the ledger -> claim and compare the stages -> write them (`writing`)
        -> add to the ledger
    wait for queues and index -> remove the stages
    -> wait for a slave if the store is a SYNC_MASTER

The log holds the marker of a batch as well, which makes a repeated commit do nothing (`ledger`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC, is_identity
from rmqstore_spark.engine.batches.markers import Markers
from rmqstore_spark.engine.batches.member_writing import MemberBatchWriter
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staging import Staging, StagingLimits
from rmqstore_spark.engine.batches.writing import BatchWriter
from rmqstore_spark.engine.counters import Failures, Histogram
from rmqstore_spark.engine.health import Periodic
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.topics import PERM_READ
from rmqstore_spark.errors import OptionError, RefusedError, StoreWriteError
from rmqstore_spark.files.names import OWN_FOLDER

_log = logging.getLogger(__name__)

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
        self._max_bytes = config.max_transaction_bytes
        self._committing = threading.Lock()
        parts = store, self._staging, admission, appender, flusher
        self._writer = (
            MemberBatchWriter(*parts, store.log)
            if isinstance(store.log, MemberLog)
            else BatchWriter(*parts)
        )
        self._commits = 0
        self._commit_failures = Failures()
        self._put_bytes = 0
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
        self._writer.puts_per_ms = max(0, put - self._put_bytes) // _INTERVAL_MS
        self._put_bytes = put
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
            end = self._log.max_offset
            done = self._ledger.find(writer, content, identity, recalled)
            if done is None:
                stages = self._claim(request, identity)
                written = self._writer.write(writer, content, stages, identity)
                self._ledger.add(writer, written.committed, written.marker_offset)
                self._commits += 1
        if written is not None:
            self._writer.finish(written.block)
            self._staging.finish(stages)
            begin, end, committed = written.begin, written.block.end, written.committed
        else:
            assert done is not None, f"{writer} was neither committed before nor now"
            committed, begin = done, done.physical_offset
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
