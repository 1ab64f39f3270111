"""Assigns offsets to records and appends them to the log, under the append lock.

(Upstream: CommitLog.asyncPutMessage, putMessageLock, topicQueueTable.)
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.store_time import StoreTime
from rmqstore_spark.engine.dispatch.dispatcher import Appended, Dispatcher, DispatchJob
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.log.placement import Placement, TooLargeError
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.record.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.record.delayed import due_codes
from rmqstore_spark.layout.spans import I8

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WAIT_S: Final = 0.2


@dataclass(frozen=True)
class Stored:
    """The places of n stored records.

    Attributes:
        physical_offset: n, where each starts in the log.
        queue_offset: n, the offset of each in its queue.
        end_offset: where the log ends after them.
    """

    physical_offset: I8
    queue_offset: I8
    end_offset: int


class Appender:
    """Numbers records, stamps them, writes them, and hands them to the dispatcher.

    Args:
        store: the open store. Its queues hold their next offsets.
        dispatcher: dispatches each block.
        health: fails with an error that makes it unsafe to continue.

    Attributes:
        log: the store's log.
        time: the source of storeTimestamps.
    """

    def __init__(self, store: OpenStore, dispatcher: Dispatcher, health: Health) -> None:
        self.log = store.log
        self.time = StoreTime(store.clock, store.log.last_timestamp)
        self._queues = store.queues
        self._host = store.config.store_host
        self._role = store.role
        self._busy_timeout = store.config.os_page_cache_busy_time_out_mills / 1000
        self._dispatcher = dispatcher
        self._health = health
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()  # held by the thread that has the lock next
        self._held_since: float | None = None
        self._next: dict[Route, int] = {}

    def append(self, block: Block) -> Stored:
        """Append the records of a checked block.

        Args:
            block: its data is changed in place, and must not be changed by others afterwards.

        Raises:
            RefusedError: the records were not appended. If `is_open` is set, they may be in the
                log.
        """
        with self.appending():
            self._require_accepting()
            try:
                placement = self.log.place(block.sizes, block.unit_ends)
            except TooLargeError as error:
                raise RefusedError(f"{error}.", PutStatus.MESSAGE_ILLEGAL) from error
            self.reserve_until(placement.end)
            next_offsets = self.next_offsets(block.routes)
            queue_offset = number_rows(block.route_of, block.queued, next_offsets)
            timestamp = self.timestamp()
            stamp_records(
                block.data, block.starts, queue_offset, placement.physical, timestamp, self._host
            )
            reach("put.before_write")
            self._write(placement, block)
            reach("put.after_write")
            codes = due_codes(block.routes, block.route_of, block.tags_code, timestamp)
            if codes is not block.tags_code:
                block = replace(block, tags_code=codes)
            self.appended(
                Appended(block, placement.physical, queue_offset, timestamp), next_offsets
            )
            reach("put.after_dispatch")
            return Stored(placement.physical, queue_offset, placement.end)

    @property
    def is_busy(self) -> bool:
        """Whether something is being appended, so that another append would wait."""
        return self._held_since is not None

    # ---- steps of an append, for callers that combine them differently ---------------------------

    @contextmanager
    def appending(self, *, patient: bool = False) -> Iterator[None]:
        """Hold the append lock, which everything below and the log's own methods need.

        Args:
            patient: wait for the lock however long another thread holds it.

        Raises:
            RefusedError: another thread holds the lock for longer than
                `osPageCacheBusyTimeOutMills`, the store is closing, or queues and index have no
                room. Or an invariant of the engine did not hold: then the store has failed, and
                `is_open` is set.
        """
        held = self._held_since
        is_stuck = held is not None and time.monotonic() - held > self._busy_timeout
        if patient:
            with self._turnstile:
                self._lock.acquire()
        elif is_stuck or not self._acquire(self._busy_timeout):
            raise RefusedError(
                "The log has been busy for longer than osPageCacheBusyTimeOutMills "
                f"({self._busy_timeout * 1000:.0f} ms). Try again.",
                PutStatus.OS_PAGECACHE_BUSY,
            )
        try:
            assert self._held_since is None, "two threads hold the append lock"
            self._held_since = time.monotonic()
            self._require_open()
            yield
        except AssertionError as error:
            wrong = self._health.fail_wrong_state(error)
            status = PutStatus.SERVICE_NOT_AVAILABLE
            raise RefusedError(str(wrong), status, is_open=True) from error
        finally:
            self._held_since = None
            self._lock.release()

    def reserve_until(self, end: int) -> None:
        """Create the segments up to a physical offset.

        Raises:
            RefusedError: they cannot be created, and the log is as it was; or a flush failed.
        """
        try:
            self.log.reserve_until(end)
        except StoreWriteError as error:
            if self.log.failure is not None:
                self._health.fail(error)
                raise RefusedError(str(error), PutStatus.SERVICE_NOT_AVAILABLE) from error
            raise RefusedError(
                f"The next segment of the CommitLog cannot be created: {error} The store "
                "accepts messages again once it can.",
                PutStatus.CREATE_MAPEDFILE_FAILED,
            ) from error

    def next_offsets(self, routes: Sequence[Route]) -> I8:
        """Return the next queue offset of each route."""
        return np.array([self._next_offset(route) for route in routes], np.int64)

    def timestamp(self, *, later: bool = False) -> int:
        """Return the storeTimestamp for records appended now: never less than an earlier one.

        Args:
            later: make it greater than all earlier ones.
        """
        return self.time.stamp(later=later)

    def appended(self, appended: Appended, next_offsets: I8) -> None:
        """Register records that belong to the log now, and hand them to the dispatcher.

        Args:
            appended: the records.
            next_offsets: the next offset of each of the block's routes, after these records.

        Raises:
            RefusedError: queues and index cannot keep up with the log; the records are in the log.
        """
        routes, end = appended.block.routes, appended.end
        assert end <= self.log.max_offset, (
            f"records up to {end} go to the queues, and the log ends at {self.log.max_offset}"
        )
        assert appended.store_timestamp >= self.log.last_timestamp, (
            f"records of {appended.store_timestamp} ms follow one of {self.log.last_timestamp} ms"
        )
        self._next.update(zip(routes, next_offsets.tolist(), strict=True))
        self.published(appended.store_timestamp)
        self.dispatch(appended)

    def dispatch(self, job: DispatchJob) -> None:
        """Hand records that are in the log to the dispatcher.

        Raises:
            RefusedError: queues and index cannot keep up with the log.
        """
        try:
            # Records in the log must be dispatched before any that come after them.
            while not self._dispatcher.wait_ready(_WAIT_S):
                if self._health.is_closed:
                    self._require_room()
            self._dispatcher.submit(job)
        except StoreWriteError as error:
            self._health.fail(error)
            raise RefusedError(str(error), PutStatus.SERVICE_NOT_AVAILABLE, is_open=True) from error

    def published(self, timestamp: int) -> None:
        """Register the storeTimestamp of records that belong to the log now."""
        self.log.last_timestamp = max(self.log.last_timestamp, timestamp)

    def forget(self, topics: Collection[str]) -> None:
        """Forget the next offsets of the queues of topics. Needs the append lock."""
        gone = set(topics)
        for route in [route for route in self._next if route.topic in gone]:
            del self._next[route]

    def continue_from_log(self) -> None:
        """Number and stamp the next records after those that the log has now.

        A slave's log has records that came without numbers or times of this object.
        Needs the append lock. All of the log is in the queues.
        """
        self._next.clear()
        self.time.continue_after(self.log.last_timestamp)

    def finish(self) -> None:
        """Wait for the append that is running. After the store was closed, no other follows."""
        with self._lock:
            pass

    # ---- parts -----------------------------------------------------------------------------------

    def _acquire(self, seconds: float) -> bool:
        """Acquire the append lock; return False if that takes too long.

        A thread that has just released the lock, and wants it again, waits for one that came
        before: it finds the turnstile taken.
        """
        end = time.monotonic() + seconds
        if not self._turnstile.acquire(timeout=seconds):
            return False
        try:
            return self._lock.acquire(timeout=max(end - time.monotonic(), 0))
        finally:
            self._turnstile.release()

    def _next_offset(self, route: Route) -> int:
        found = self._next.get(route)
        return self._queues.max_offset(route.topic, route.queue_id) if found is None else found

    def _write(self, placement: Placement, block: Block) -> None:
        try:
            self.log.write(placement, block.data, block.starts)
        except StoreWriteError as error:
            has_failed = error.errno not in _NO_ROOM or self.log.failure is not None
            if has_failed:
                self._health.fail(error)
            raise RefusedError(
                str(error), PutStatus.SERVICE_NOT_AVAILABLE, is_open=has_failed
            ) from error

    def _require_open(self) -> None:
        if self._health.is_closed:
            text = "The store is closing. Try again when it is open."
            raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE)
        self._require_room()

    def _require_accepting(self) -> None:
        """Refuse records of this store's own in the log of a slave: it is a copy of its master's.

        `Admission` has accepted them, and the role can have changed since.
        """
        if not self._role.accepts:
            raise RefusedError(
                "The store has just become a slave, and accepts no messages.",
                "SERVICE_NOT_AVAILABLE",
            )

    def _require_room(self) -> None:
        stalled = self._dispatcher.stalled
        if stalled is not None:
            raise RefusedError(
                f"There is no space for queues and index: {stalled} The store accepts messages "
                "again once there is.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
