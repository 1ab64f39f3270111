"""What an open store tells of itself: the metrics that clients, commands and Prometheus show."""

from __future__ import annotations

import time
from typing import Any

from rmqstore_spark.base.types import CommitRequest, CommitResult
from rmqstore_spark.engine.append.puts import Puts
from rmqstore_spark.engine.histogram import Histogram
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.workers import Workers


class Figures:
    """Collects the figures of an open store, and counts what is committed. Thread-safe.

    Args:
        store: the open store.
        workers: its threads.
        puts: what was put into it.
    """

    def __init__(self, store: OpenStore, workers: Workers, puts: Puts) -> None:
        self._store = store
        self._workers = workers
        self._puts = puts
        self._opened = time.monotonic()
        self._commit_latency = Histogram()

    def committed(self, request: CommitRequest, result: CommitResult, begin: float) -> None:
        """Count a batch.

        Args:
            request: what was to be committed.
            result: its outcome.
            begin: when this began, by `time.monotonic`.
        """
        if result.status == "COMMITTED":
            self._puts.count(result.rows, sum(stage.bytes for stage in request.stages))
            self._commit_latency.observe(time.monotonic() - begin)

    def stats(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
        log, workers = self._store.log, self._workers
        return {
            "state": workers.admission.state,
            "uptimeSeconds": time.monotonic() - self._opened,
            **self._puts.stats(),
            "commitLatency": self._commit_latency.to_json(),
            "flushLatency": workers.flusher.latency.to_json(),
            "commitLogMinOffset": log.min_offset,
            "commitLogMaxOffset": log.max_offset,
            "commitLogFlushedOffset": log.flushed_offset,
            **workers.batches.stats(),
            **workers.expiry.stats(),
            **workers.delivery.stats(),
            **workers.transactions.stats(),
            "dispatchBehindBytes": workers.dispatcher.behind_bytes,
            "diskUsedRatio": workers.admission.disk_used_ratio,
            "clockBehindSeconds": workers.appender.time.behind_ms / 1000,
            "queues": {
                topic: {str(queue_id): list(bounds) for queue_id, bounds in numbers.items()}
                for topic, numbers in self._store.queues.ranges().items()
            },
        }
