"""Dispatches appended blocks to queues and index, at most one batch behind the log.

`submit` hands over a block, and waits until the block before it is done. So the log never runs
ahead of its queues, and memory stays bounded. A thread dispatches; but a few small messages that
came together are dispatched by the caller, for whom a change of threads, and the wait for the one
after the next block, would take longer. The answer to a single message is not held up so: its
client has nothing else to wait for. On a full disk the thread holds its block, and one
more: a put may already be in the log when the problem is noticed. It continues once there is room.
Any other failure is permanent, and all later calls fail.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.dispatch.indexes import IndexFiles
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.layout.record.block import Block, index_hashes
from rmqstore_spark.layout.spans import I4, I8

_log = logging.getLogger(__name__)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_RETRY_S: Final = 0.2
_LOOK_S: Final = 0.2
_SMALL: Final = 1 << 16
"""Bytes of the largest block that the caller dispatches."""
_MOST_STALLED: Final = 2
"""The most blocks that are held while there is no room."""


class DispatchJob(Protocol):
    """Records that are in the log, and belong into queues and index."""

    @property
    def rows(self) -> int:
        """How many records."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the records."""
        ...

    @property
    def store_timestamp(self) -> int:
        """The storeTimestamp of the last record, milliseconds."""
        ...

    @property
    def end(self) -> int:
        """Physical offset of the byte after the last record; 0 without records."""
        ...

    def to_queues(self, queues: ConsumeQueues, /) -> None:
        """Write the records' entries. After a failure it is called again."""
        ...

    def keys(self) -> tuple[I4, I8, I8]:
        """Return hash, physical offset and storeTimestamp of each index key of the records."""
        ...


@dataclass(frozen=True)
class Appended:
    """A block that is in the log.

    Attributes:
        block: its stamped records. If `hashes` is set, their bytes may be left out.
        physical_offset: n, where each starts in the log.
        queue_offset: n, the offset of each in its queue.
        store_timestamp: of all records, milliseconds.
        hashes: the keys of the records as `index_hashes` returns them, if they are known already.
    """

    block: Block
    physical_offset: I8
    queue_offset: I8
    store_timestamp: int
    hashes: tuple[I4, I4] | None = None

    @property
    def rows(self) -> int:
        """How many records."""
        return len(self.physical_offset)

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return int(self.block.sizes.sum())

    def to_queues(self, queues: ConsumeQueues) -> None:
        """Write the records' entries."""
        entries, bounds = queues.format.of_block(self.block, self.physical_offset)
        assert int(bounds[-1]) == len(entries), "not each entry of a block has its queue"
        first = self._first_offsets(len(bounds) - 1)
        for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
            if begin < end:
                route = self.block.routes[number]
                part = entries[begin:end]
                queues.append(route.topic, route.queue_id, part, int(first[number]))

    def keys(self) -> tuple[I4, I8, I8]:
        """Return the records' index keys."""
        block = self.block
        hashes, rows = self.hashes or index_hashes(block.data, block.starts, block.sizes)
        times = np.full(len(rows), self.store_timestamp, np.int64)
        return hashes, self.physical_offset[rows], times

    def _first_offsets(self, routes: int) -> I8:
        """Return the queue offset of the first queued record of each route."""
        rows = np.flatnonzero(self.block.queued)[::-1]
        first = np.zeros(routes, np.int64)
        first[self.block.route_of[rows]] = self.queue_offset[rows]
        return first

    @property
    def end(self) -> int:
        """Physical offset of the byte after its last record; 0 for an empty block."""
        if not len(self.physical_offset):
            return 0
        return int(self.physical_offset[-1]) + int(self.block.sizes[-1])


@dataclass(frozen=True)
class _Work:
    """A block that is being dispatched.

    Attributes:
        job: the block.
        steps: what is left to do. After a failure, the first one is repeated.
    """

    job: DispatchJob
    steps: deque[Callable[[], None]]

    def do(self, step: Callable[[Callable[[], None]], bool]) -> bool:
        """Do what is left; return False as soon as a step is not done."""
        while self.steps:
            if not step(self.steps[0]):
                return False
            self.steps.popleft()
        return True


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
        self._works: deque[_Work] = deque()
        self._is_here = False
        self._closing = False
        self._done_timestamp = 0
        self._done_until = self._submitted_until = 0
        self._failure: Exception | None = None
        self._stalled: StoreWriteError | None = None
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
        with self._changed:
            return sum(work.job.size for work in self._works)

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
        """Hand over a block, or dispatch it; waits until the block before it is done.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        work = self._work(job)
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._raise_failure()
            end = job.end or self._submitted_until
            assert end >= self._submitted_until, (
                f"a block that ends at {end} is to be dispatched after one that ends at "
                f"{self._submitted_until}"
            )
            self._submitted_until = end
            self._works.append(work)
            self._is_here = len(self._works) == 1 and job.rows > 1 and job.size <= _SMALL
            if not self._is_here:
                self._changed.notify_all()
                return
        is_done = False
        try:
            is_done = work.do(_done_at_once)
        finally:  # the thread does the rest, also after Ctrl-C
            with self._changed:
                self._is_here = False
                if is_done:
                    self._finish(work)
                self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all submitted blocks are in queues and index; otherwise as `wait_ready`."""
        with self._changed:
            done = self._changed.wait_for(self._is_idle, timeout)
            self._raise_failure()
            return done

    def drain_or_refuse(self) -> None:
        """Wait until all submitted blocks are in queues and index.

        Raises:
            StoreWriteError: dispatching failed, or there is no room for queues and index.
        """
        while not self.drain(_LOOK_S):
            if self._stalled is not None:
                raise self._stalled

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
        return not self._works or self._failure is not None

    def _has_room(self) -> bool:
        return self._is_idle() or (self._stalled is not None and len(self._works) < _MOST_STALLED)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            remedy = "Restart the store process: it rebuilds them from the log."
            raise StoreWriteError(f"{_failed(self._failure)} {remedy}") from self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if not self._works or (self._closing and self._stalled is not None):
                    return
                work = self._works[0]
            is_done = False
            try:
                is_done = work.do(self._persist)
            except Exception as error:  # noqa: BLE001 - the next caller gets it
                self._failure = error
                self._health.fail(_failed(error))
            with self._changed:
                if self._failure is not None:
                    self._works.popleft()
                elif is_done:
                    self._finish(work)
                self._changed.notify_all()
                if self._failure is not None or (not is_done and self._closing):
                    return

    def _has_work(self) -> bool:
        return bool(self._works or self._closing) and not self._is_here

    def _finish(self, work: _Work) -> None:
        self._done_timestamp = work.job.store_timestamp
        self._done_until = max(self._done_until, work.job.end)
        self._works.popleft()

    def _work(self, job: DispatchJob) -> _Work:
        work = _Work(job, deque([lambda: job.to_queues(self._queues)]))
        indexes = self._indexes
        if indexes is not None:

            def hold() -> None:
                keys = job.keys()
                indexes.hold(*keys)
                work.steps.append(indexes.settle if len(keys[0]) else indexes.make_room)

            work.steps.append(hold)
        return work

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


def _done_at_once(step: Callable[[], None]) -> bool:
    """Do a step; return False if it fails: the thread repeats it, and tells why if it has to."""
    try:
        step()
    except Exception:  # noqa: BLE001 - see above
        return False
    return True


def _failed(error: Exception) -> StoreWriteError:
    return StoreWriteError(f"queues and index could not be updated from the log: {error}")
