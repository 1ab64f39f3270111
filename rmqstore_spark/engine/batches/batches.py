"""Combines staging, commits and the ledger for Spark's sinks."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.batches.commit import Committer
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.engine.batches.markers import Markers
from rmqstore_spark.engine.batches.staging import Stage, Staging, StagingLimits
from rmqstore_spark.engine.failure_counts import Failures
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.periodic import Periodic
from rmqstore_spark.engine.tables.topics import PERM_READ
from rmqstore_spark.errors import OptionError, StoreWriteError
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
    """

    def __init__(
        self,
        store: OpenStore,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
        durability: Durability,
    ) -> None:
        config = store.config
        self._role = store.role
        self._log = store.log
        self._topics = store.topics
        self._admission = admission
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
        self._committer = Committer(
            appender, flusher, durability, self._staging, self._ledger, admission, config
        )
        self._commit_failures = Failures()
        self._intervals = 0
        self._tending = Periodic("rmqstore-staging", _INTERVAL_MS, self._tend, admission.health)

    def staged_topics(self, stages: Sequence[StageInfo]) -> Collection[str]:
        """Return the topics of stages; nothing of a stage that is not here."""
        return self._staging.topics(stages)

    def begin_stage(self, stage_id: str, owner: str = "", identity: str = "") -> Stage:
        """Begin to stage the records of one task attempt; see `Staging.begin`."""
        with self._staging.failures.counting():
            self._admission.check_state()
            return self._staging.begin(stage_id, owner, identity)

    def commit(self, request: CommitRequest, identity: str = "") -> CommitResult:
        """Commit a batch, as a whole and once; see `Committer.commit`."""
        with self._commit_failures.counting():
            self._admission.check_state()
            done = self._committer.commit(request, identity)
            self._make_marker_topic()  # later than the topics of the batch, which need their room
            return done

    def abort(self, stage_ids: Iterable[str], identity: str = "") -> None:
        """Remove stages, which cannot be used again. Committed stages stay committed."""
        self._staging.abort(stage_ids, identity=identity)

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        return {
            "stages": len(self._staging),
            "stagedBytes": self._staging.staged_bytes,
            "stagedMemoryBytes": self._staging.memory.used,
            "commits": self._committer.commits,
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
