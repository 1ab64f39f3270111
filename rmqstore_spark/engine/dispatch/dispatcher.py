"""Dispatches appended blocks to queues and index, a few behind the log.

A small block is dispatched by its caller: a change of threads, and the wait for the one after the
next block, would take longer. A thread dispatches large ones, those of a commit, and what comes
meanwhile: a small block waits for neither. So that memory stays bounded and the log does not run
ahead of its queues, only so much may wait. Who appends asks for room before it is written
(`has_room`), and waits for it without the append lock, which others need meanwhile.

The thread also dispatches what failed: on a full disk it holds all that waits, and continues once
there is room. The append lock admits nothing more by then. Any other failure is permanent, and all
later calls fail.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.indexes import IndexFiles
from rmqstore_spark.engine.dispatch.jobs import DispatchJob
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError

_log = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""There is no room on the disk, or for open files: a later try may succeed."""
_RETRY_S: Final = 0.2
_LOOK_S: Final = 0.2
_SMALL: Final = 1 << 16
"""Bytes of the largest block that its caller dispatches."""
_MOST_WAITING: Final = 1000
_MOST_BYTES: Final = 16 << 20
"""Blocks behind which another one may wait, and the bytes of the small ones among them."""
_MOST_LARGE: Final = 8 << 20
"""The same for a large one: bytes of large ones, that of the one being dispatched included."""


@dataclass(slots=True)
class _Work:
    """A block that is being dispatched.

    Attributes:
        job: the block.
        end: physical offset of the byte after its last record.
        is_in_queues: whether its entries are written.
        held: bytes of records that it holds in memory.
        has_keys: whether it has keys for the index, which are held there; None: not known yet.
    """

    job: DispatchJob
    end: int
    held: int
    is_in_queues: bool = False
    has_keys: bool | None = None


class PuttingOff:
    """A context, for the thread that makes it, that can be entered again and again.

    Args:
        threads: those that are within such a context.
    """

    def __init__(self, threads: set[int]) -> None:
        self._threads = threads
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        self._threads.add(self._thread)

    def __exit__(self, *_: object) -> None:
        self._threads.discard(self._thread)


class Dispatcher:
    """Dispatches records in the order of the log.

    Args:
        queues: take the entries.
        indexes: take the keys; None if the store keeps no index.
        checkpoint: records how far queues are flushed.
        health: fails with the error that ended dispatching, before the next `submit` fails.

    Attributes:
        failure: the error that ended dispatching.
        stalled: the error that holds it up for now: there is no room for queues or index.
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
        self._lock = threading.Lock()
        self._has_come = threading.Condition(self._lock)  # for the thread
        self._has_moved = threading.Condition(self._lock)  # for all others
        self._waiting = 0
        self._works: deque[_Work] = deque()
        self._is_here = False  # a caller dispatches
        self._put_off: _Work | None = None  # what a caller dispatches soon, unless another does
        self._putting_off: set[int] = set()
        self._closing = False
        self._done_timestamp = 0
        self._done_until = self._submitted_until = 0
        self._held = {False: 0, True: 0}  # bytes of blocks, by whether they are large
        self._submitted = self._done = 0  # how many blocks
        self._has_ended = False
        self._is_in_doubt = False  # a caller could not dispatch: the thread finds out why
        self.failure: Exception | None = None
        self.stalled: StoreWriteError | None = None
        self._thread = threading.Thread(target=self._run, name="rmqstore-dispatch", daemon=True)
        self._thread.start()

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log whose records are not in queues and index yet."""
        with self._lock:
            return sum(work.job.size for work in self._works)

    @property
    def done_until(self) -> int:
        """Physical offset up to which submitted records are in queues and index; 0 before that."""
        return self._done_until

    def has_room(self, size: int) -> bool:
        """Return whether `submit` takes a block of so many bytes at once, or says what failed."""
        if not self._works or self.failure is not None:
            return True
        return (
            not self._is_in_doubt
            and len(self._works) < _MOST_WAITING
            and self._held[size > _SMALL] < _most(size)
        )

    def await_room(self, size: int, timeout: float) -> None:
        """Wait until there may be room for a block, or there is none for queues and index."""
        self.dispatch_now()
        with self._lock:
            self._wait_for(lambda: self.has_room(size) or self.stalled is not None, timeout)

    def submit(self, job: DispatchJob, timeout: float | None = None) -> bool:
        """Hand over a block when it has room, or dispatch it.

        A small one that follows no other is dispatched here and now, or later if this thread does
        that (`putting_off`); or by the dispatcher's thread, if the index is just being flushed.

        Args:
            job: the block.
            timeout: seconds to wait for that.

        Returns:
            Whether it was handed over; False on timeout.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        if self._put_off is not None:
            self.dispatch_now()
        size = job.size
        with self._lock:
            has_room = not self._works or self.has_room(size)
            if not (has_room or self._wait_for(lambda: self.has_room(size), timeout)):
                return False
            is_first = not self._works
            work = self._add(job, size)
            if not is_first or size > _SMALL or self._would_wait():
                self._has_come.notify()
                return True
            self._is_here = True
            if threading.get_ident() in self._putting_off:
                self._put_off = work
                return True
        self._dispatch_here(work)
        return True

    def submit_all(self, jobs: Iterable[DispatchJob]) -> None:
        """Hand over the blocks of a commit, however many others wait.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        self.dispatch_now()
        with self._lock:
            for job in jobs:
                self._add(job, 0)
            self._has_come.notify()

    def _add(self, job: DispatchJob, held: int) -> _Work:
        """Add a block after the others. Needs the lock."""
        if self.failure is not None:
            self._raise_failure()
        end = job.end or self._submitted_until
        assert end >= self._submitted_until, (
            f"a block that ends at {end} is to be dispatched after one that ends at "
            f"{self._submitted_until}"
        )
        self._submitted_until = end
        work = _Work(job, end, held)
        self._works.append(work)
        self._held[held > _SMALL] += held
        self._submitted += 1
        return work

    def putting_off(self) -> PuttingOff:
        """Let `submit` return at once in this thread, in a context; `dispatch_now` follows soon.

        What is waited for until then (`drain`, the next `submit`) is dispatched by who waits.
        """
        return PuttingOff(self._putting_off)

    def dispatch_now(self) -> None:
        """Dispatch the block that a caller has put off, if there is one."""
        if self._put_off is None:
            return
        with self._lock:
            work, self._put_off = self._put_off, None
        if work is not None:
            self._dispatch_here(work)

    def _dispatch_here(self, work: _Work) -> None:
        is_done = False
        try:
            self._dispatch(work)
            is_done = True
        except Exception:  # noqa: BLE001 - the thread tries again, and tells why if it has to
            is_done = False
        finally:  # the thread does the rest, also after Ctrl-C
            with self._lock:
                self._is_here = False
                if is_done:
                    self._finish(work)
                else:
                    self._is_in_doubt = True
                if self._works or self._closing:
                    self._has_come.notify()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all submitted blocks are in queues and index. Return False on timeout.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        self.dispatch_now()
        with self._lock:
            wanted = self._submitted
            done = self._wait_for(lambda: self._done >= wanted or self.failure is not None, timeout)
            self._raise_failure()
            return done

    def await_end(self, end: int, timeout: float | None = None) -> bool:
        """Wait until what ends at a physical offset, or before it, is in queues and index.

        Returns:
            Whether it is; False on timeout, or if the store was closed before.

        Raises:
            StoreWriteError: dispatching has failed permanently.
        """
        with self._lock:
            self._wait_for(lambda: self._done_until >= end or self._has_ended, timeout)
            if self._done_until < end:
                self._raise_failure()
            return self._done_until >= end

    def drain_or_refuse(self) -> None:
        """Wait until all submitted blocks are in queues and index.

        Raises:
            StoreWriteError: dispatching failed, or there is no room for queues and index.
        """
        while not self.drain(_LOOK_S):
            if self.stalled is not None:
                raise self.stalled

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
        self.dispatch_now()
        with self._lock:
            self._closing = True
            self._has_come.notify()
        self._thread.join()

    # ---- parts ---------------------------------------------------------------------------------

    def _would_wait(self) -> bool:
        """Whether dispatching has to wait for the index, so that the thread had better do it."""
        return self._indexes is not None and self._indexes.is_flushing

    def _wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        self._waiting += 1
        try:
            return self._has_moved.wait_for(is_so, timeout)
        finally:
            self._waiting -= 1

    def _raise_failure(self) -> None:
        if self.failure is not None:
            remedy = "Restart the store process: it rebuilds them from the log."
            raise StoreWriteError(f"{_failed(self.failure)} {remedy}") from self.failure

    def _dispatch(self, work: _Work) -> None:
        """Do what is left of a block. After a failure, the step that has failed is repeated."""
        if not work.is_in_queues:
            work.job.to_queues(self._queues)
            work.is_in_queues = True
        indexes = self._indexes
        if indexes is None:
            return
        if work.has_keys is None:
            keys = work.job.keys()
            work.has_keys = len(keys[0]) > 0
            if work.has_keys:
                indexes.hold(*keys)
        if work.has_keys:
            indexes.settle()
        elif not indexes.has_room:
            indexes.make_room()

    def _finish(self, work: _Work) -> None:
        """Take note that a block is dispatched. Needs the lock."""
        self._done_timestamp = work.job.store_timestamp
        self._done_until = work.end
        self._works.popleft()
        self._is_in_doubt = False
        self._done += 1
        self._held[work.held > _SMALL] -= work.held
        if self._waiting:
            self._has_moved.notify_all()

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._dispatch_all()
        finally:
            with self._lock:
                self._has_ended = True
                self._has_moved.notify_all()

    def _dispatch_all(self) -> None:
        while True:
            with self._lock:
                self._has_come.wait_for(self._has_work)
                if not self._works or (self._closing and self.stalled is not None):
                    return
                work = self._works[0]
            is_done = False
            try:
                is_done = self._persist(work)
            except Exception as error:  # noqa: BLE001 - the next caller gets it
                self.failure = error
                self._health.fail(_failed(error))
            with self._lock:
                if is_done:
                    self._finish(work)
                    continue
                if self.failure is not None:
                    gone = self._works.popleft()
                    self._held[gone.held > _SMALL] -= gone.held
                    self._has_moved.notify_all()
                return

    def _has_work(self) -> bool:
        return bool(self._works or self._closing) and not self._is_here

    def _persist(self, work: _Work) -> bool:
        """Dispatch a block, again while there is no room. Return False if `close` comes first."""
        while True:
            try:
                self._dispatch(work)
            except StoreWriteError as error:
                if error.errno not in NO_ROOM:
                    raise
                if self.stalled is None:
                    _log.warning(
                        "Queues and index are behind the log, and the store refuses messages, "
                        "until this succeeds: %s",
                        error,
                    )
                with self._lock:
                    self.stalled, self._is_in_doubt = error, False
                    self._has_moved.notify_all()
            else:
                if self.stalled is not None:
                    _log.warning("Queues and index are being updated again.")
                self.stalled = None
                return True
            with self._lock:
                if self._has_come.wait_for(lambda: self._closing, _RETRY_S):
                    return False


def _most(size: int) -> int:
    """Return behind how many bytes of its kind a block may wait."""
    return _MOST_LARGE if size > _SMALL else _MOST_BYTES


def _failed(error: Exception) -> StoreWriteError:
    return StoreWriteError(f"queues and index could not be updated from the log: {error}")


class QueueFlusher:
    """Flushes what was dispatched, one call at a time. Thread-safe.

    Args:
        dispatcher: writes queues and index.
        checkpoint: the store's checkpoint.
        config: the store's configuration.
    """

    def __init__(
        self, dispatcher: Dispatcher, checkpoint: CheckpointKeeper, config: StoreConfig
    ) -> None:
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._interval = config.flush_consume_queue_thorough_interval / 1000
        self._index_flushed = time.monotonic()
        self._flushing = threading.Lock()

    def flush(self, *, sync_index: bool = False) -> None:
        """Flush queues and checkpoint.

        Args:
            sync_index: flush the newest index file too. That also happens every
                `flushConsumeQueueThoroughInterval`.

        Raises:
            StoreWriteError: a flush failed.
        """
        with self._flushing:
            sync_index = sync_index or time.monotonic() - self._index_flushed >= self._interval
            reach("queues.before_flush")
            self._dispatcher.flush(sync_index=sync_index)
            if sync_index:
                self._index_flushed = time.monotonic()
            reach("checkpoint.before_write")
            self._checkpoint.write()
