"""What Spark's sinks need of a store: staging, commits and the ledger, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rmqstore_spark.files.own import OWN_FOLDER
from rmqstore_spark.layout.block import Block
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer.appending import Appender
from rmqstore_spark.writer.commit import CommitRequest, CommitResult, Committer
from rmqstore_spark.writer.config import StoreConfig
from rmqstore_spark.writer.flush import FlushService
from rmqstore_spark.writer.ledger import MARKER_TOPIC, Ledger
from rmqstore_spark.writer.periodic import Periodic
from rmqstore_spark.writer.staging import Stage, Staging, StagingLimits
from rmqstore_spark.writer.topics import PERM_READ, TopicTable

__all__ = ["Transactions"]

_EXPIRY_INTERVAL_MS = 1000


class Transactions:
    """Batches of a store that appear whole and once. Thread-safe.

    Args:
        store: the store directory, recovered.
        log_end: where its log ends.
        config: how it is kept.
        topics: its topics; the markers' one is made with the first commit.
        appender, flusher: the way into the log, and to the disk.
        check: checks a block on receipt.
        check_state: raises RefusedError where the store takes nothing.
        clock: milliseconds since the epoch.
        on_failure: told of what makes it unsafe to go on.
    """

    def __init__(
        self,
        store: str,
        log_end: int,
        config: StoreConfig,
        topics: TopicTable,
        appender: Appender,
        flusher: FlushService,
        *,
        check: Callable[[U1], Block],
        check_state: Callable[[], None],
        clock: Callable[[], int],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._topics = topics
        self._check_state = check_state
        limits = StagingLimits(
            config.staging_max_bytes,
            config.staging_max_stage_bytes,
            config.staging_max_stages,
            config.staging_timeout,
        )
        self._staging = Staging(Path(store, OWN_FOLDER, "staging"), check, limits, clock)
        with Store.open(store) as reader:
            path = os.path.join(store, OWN_FOLDER, "ledger.json")
            self._ledger = Ledger.open(path, reader, log_end)
        self._ledger.save()
        self._committer = Committer(
            appender,
            flusher,
            self._staging,
            self._ledger,
            host=config.host,
            max_bytes=config.max_transaction_bytes,
            check_state=check_state,
            on_failure=on_failure,
        )
        self._expiry = Periodic(
            "rmqstore-staging", _EXPIRY_INTERVAL_MS, self._staging.expire, on_failure
        )

    def begin_stage(self, stage_id: str, owner: str = "") -> Stage:
        """Begin to stage what one attempt of a task writes; see `Staging.begin`."""
        self._check_state()
        return self._staging.begin(stage_id, owner)

    def commit(self, request: CommitRequest) -> CommitResult:
        """Let what was staged appear in the log, whole and once; see `Committer.commit`."""
        self._check_state()
        if MARKER_TOPIC not in self._topics:
            self._topics.create(MARKER_TOPIC, 1, 1, PERM_READ)
        return self._committer.commit(request)

    def abort(self, stage_ids: Iterable[str]) -> None:
        """Remove stages, for good; those that were committed stay committed."""
        self._staging.abort(stage_ids)

    def stats(self) -> dict[str, Any]:
        """Figures, as JSON takes them."""
        return {
            "stages": len(self._staging),
            "stagedBytes": self._staging.staged_bytes,
            "commits": self._committer.commits,
        }

    def save(self) -> None:
        """Write down what was committed; when nothing is committed any more."""
        self._ledger.save()

    def close(self) -> None:
        """Remove all stages."""
        self._expiry.close()
        self._staging.close()
