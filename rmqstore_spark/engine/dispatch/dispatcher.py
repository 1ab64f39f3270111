"""Dispatches appended blocks to queues and index, in a thread that stays close behind the log.

`submit` hands over a block. It waits while 256 KiB or more are not done, so the log hardly runs
ahead of its queues, and memory stays bounded. Small blocks that have gathered are dispatched
together: each costs about as much as all of them. On a full disk the thread holds its blocks, and
one more: a put may already be in the log when the problem is noticed. It continues once there is
room. Any other failure is permanent, and all later calls fail.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rmqstore_spark.engine.dispatch.appended import Appended, AppendedTogether, DispatchJob
from rmqstore_spark.engine.dispatch.indexes import IndexFiles
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError

__all__ = ["Dispatcher"]

_log = logging.getLogger(__name__)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_RETRY_S: Final = 0.2
_MOST_WAITING: Final = 256 << 10
"""Bytes of blocks that are not done, above which no other one is taken."""


class Dispatcher:
    """Dispatches records in the order of the log.

    Args:
        queues: take the entries.
        indexes: take the keys; None if the store keeps no index.
        checkpoint: records how far queues are flushed.
        health: fails with the error that ended dispatching, before the next `submit` fails.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        indexes: IndexFiles | None,
        checkpoint: CheckpointKeeper,
        health: Health,
    ) -> None:
        self._queues = queues
        self._indexes = indexes
        self._checkpoint = checkpoint
        self._health = health
        self._changed = threading.Condition()
        self._jobs: deque[DispatchJob] = deque()
        self._behind = 0
        self._closing = False
        self._done_timestamp = 0
        self._done_until = 0
        self._failure: Exception | None = None
        self._stalled: StoreWriteError | None = None
        self._stalled_jobs = 0
        self._thread = threading.Thread(target=self._run, name="rmqstore-dispatch", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Exception | None:
        """The error that ended dispatching."""
        return self._failure

    @property
    def stalled(self) -> StoreWriteError | None:
        """The error that holds up dispatching for now: there is no room for queues or index."""
        return self._stalled

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log whose records are not in queues and index yet."""
        return self._behind

    @property
    def done_until(self) -> int:
        """Physical offset up to which submitted records are in queues and index; 0 before that."""
        return self._done_until

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until `submit` would not wait. Return False on timeout.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        with self._changed:
            ready = self._changed.wait_for(self._has_room, timeout)
            self._raise_failure()
            return ready

    def submit(self, job: DispatchJob) -> None:
        """Hand over a block; waits until those before it are done, or are few and small.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._raise_failure()
            self._jobs.append(job)
            self._behind += job.size
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all submitted blocks are in queues and index; otherwise as `wait_ready`."""
        with self._changed:
            done = self._changed.wait_for(self._is_idle, timeout)
            self._raise_failure()
            return done

    def flush(self, *, sync_index: bool = False) -> None:
        """Flush queues and full index files, and advance the checkpoint.

        Raises:
            StoreWriteError: a flush failed.
        """
        timestamp = self._done_timestamp
        self._queues.flush()
        self._checkpoint.advance(logics=timestamp)
        if self._indexes is not None:
            self._indexes.flush(sync=sync_index)

    def close(self) -> None:
        """Stop the thread. The next start dispatches what is not dispatched by now."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # ---- the thread ----------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._jobs or self._failure is not None

    def _has_room(self) -> bool:
        if self._is_idle():
            return True
        if self._stalled is not None:
            return len(self._jobs) <= self._stalled_jobs
        return self._behind < _MOST_WAITING

    def _raise_failure(self) -> None:
        if self._failure is not None:
            remedy = "Restart the store process: it rebuilds them from the log."
            raise StoreWriteError(f"{_failed(self._failure)} {remedy}") from self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs or (self._closing and self._stalled is not None):
                    return
                job, count = self._next()
            try:
                done = self._dispatch(job)
            except Exception as error:  # noqa: BLE001 - the next caller gets it
                done = True
                self._failure = error
                self._health.fail(_failed(error))
            with self._changed:
                if done:
                    if self._failure is None:
                        self._done_timestamp = job.store_timestamp
                        self._done_until = max(self._done_until, job.end)
                    for _ in range(count):
                        self._behind -= self._jobs.popleft().size
                self._changed.notify_all()
                if self._failure is not None or (not done and self._closing):
                    return

    def _next(self) -> tuple[DispatchJob, int]:
        """Return what to dispatch next, and how many jobs that is."""
        blocks, size = list[Appended](), 0
        for job in self._jobs:
            size += job.size
            if not isinstance(job, Appended) or (blocks and size > _MOST_WAITING):
                break
            blocks.append(job)
        if len(blocks) < 2:
            return self._jobs[0], 1
        return AppendedTogether(blocks), len(blocks)

    def _dispatch(self, job: DispatchJob) -> bool:
        """Dispatch a block; wait for room if needed. Return False if `close` comes first."""
        return self._persist(lambda: job.to_queues(self._queues)) and self._to_index(job)

    def _to_index(self, job: DispatchJob) -> bool:
        indexes = self._indexes
        if indexes is None:
            return True
        hashes, offsets, times = job.keys()
        indexes.hold(hashes, offsets, times)
        return self._persist(indexes.settle if len(hashes) else indexes.make_room)

    def _persist(self, step: Callable[[], None]) -> bool:
        """Run a step; retry it while there is no room. Return False if `close` comes first."""
        while True:
            try:
                step()
            except StoreWriteError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if self._stalled is None:
                    _log.warning(
                        "Queues and index are behind the log, and the store refuses messages, "
                        "until this succeeds: %s",
                        error,
                    )
                with self._changed:
                    if self._stalled is None:
                        self._stalled_jobs = len(self._jobs)
                    self._stalled = error
                    self._changed.notify_all()
            else:
                if self._stalled is not None:
                    _log.warning("Queues and index are being updated again.")
                self._stalled = None
                return True
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, _RETRY_S):
                    return False


def _failed(error: Exception) -> StoreWriteError:
    return StoreWriteError(f"queues and index could not be updated from the log: {error}")
