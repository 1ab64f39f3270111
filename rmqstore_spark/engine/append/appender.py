"""Assigns offsets to records and appends them to the log, under the append lock.

Their storeTimestamps never go back even if the clock does: searching a queue by time relies on
that. While the clock is behind the last one, that one is used again, so all messages of that period
have the same time. Each leap is logged once, and the metrics show it for as long as it lasts
(docs/operate.md, "When the clock went back").

(Upstream: CommitLog.asyncPutMessage, putMessageLock, topicQueueTable.)
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.dispatch.jobs import Appended, DispatchJob
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.log.placement import Placement, TooLargeError, place
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.record.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.record.delayed import due_codes
from rmqstore_spark.layout.spans import I8

_log = logging.getLogger(__name__)

_TOLERANCE_MS: Final = 1000
"""A clock synchronized with NTP goes back by less."""


class StoreTime:
    """Assigns storeTimestamps. `stamp` is for one thread at a time, the rest for any.

    Args:
        clock: returns milliseconds since the epoch.
        last: the last storeTimestamp in the log.
    """

    def __init__(self, clock: Callable[[], int], last: int) -> None:
        self._clock = clock
        self._last = last
        self._lock = threading.Lock()
        self._noted = 0
        self.look()

    @property
    def behind_ms(self) -> int:
        """Milliseconds that the clock is behind the last storeTimestamp; 0 if it is not."""
        return max(0, self._last - self._clock())

    def stamp(self, *, later: bool = False) -> int:
        """Return the storeTimestamp for now: never less than an earlier one.

        Args:
            later: make it greater than all earlier ones.
        """
        now = self._clock()
        if self._last - now > _TOLERANCE_MS:
            self._note(self._last - now)
        self._last = max(self._last + later, now)
        return self._last

    def continue_after(self, last: int) -> None:
        """Assign no storeTimestamp before one that is in the log. As `stamp`, for one thread."""
        self._last = max(self._last, last)

    def look(self) -> None:
        """Check whether the clock went back or has caught up, and log it."""
        self._note(self.behind_ms)

    def _note(self, behind: int) -> None:
        with self._lock:
            leapt = behind > self._noted + _TOLERANCE_MS
            caught_up = self._noted > _TOLERANCE_MS >= behind
            self._noted = behind
        if leapt:
            _log.warning(
                "The clock is %.1f s behind the storeTimestamp of the last message (%d): it went "
                "back, or was ahead before. Until it has caught up, all messages get that "
                "timestamp, and readers by time find them there. Check the machine's clock and "
                "its synchronization; see docs/operate.md, \"When the clock went back\".",
                behind / 1000, self._last,
            )  # fmt: skip
        elif caught_up:
            _log.warning("The clock has caught up with the storeTimestamps.")


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


class AppendLock:
    """The lock of all that changes the log, as a context. An instance waits only so long.

    Args:
        patience: seconds that another thread may hold it (`osPageCacheBusyTimeOutMills`).
        dispatcher: takes what is appended; nothing is, while it has no room.
        health: says whether the store is closing, and fails if an invariant does not hold.

    Attributes:
        held_since: since when a thread holds it, by `time.monotonic`; None: none does.
    """

    def __init__(self, patience: float, dispatcher: Dispatcher, health: Health) -> None:
        self._patience = patience
        self._dispatcher = dispatcher
        self._health = health
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()  # held by the thread that has the lock next
        self.held_since: float | None = None

    def __enter__(self) -> None:
        # A thread that has just released the lock, and wants it again, waits for one that came
        # before: it finds the turnstile taken.
        now, held = time.monotonic(), self.held_since
        if held is not None and now - held > self._patience:
            raise self._busy()
        if not self._turnstile.acquire(timeout=self._patience):
            raise self._busy()
        try:
            left = now + self._patience - time.monotonic()
            has_lock = self._lock.acquire(timeout=max(left, 0))
        finally:
            self._turnstile.release()
        if not has_lock:
            raise self._busy()
        self._begin()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, AssertionError):
                wrong = self._health.fail_wrong_state(error)
                status = PutStatus.SERVICE_NOT_AVAILABLE
                raise RefusedError(str(wrong), status, is_open=True) from error
        finally:
            self.held_since = None
            self._lock.release()

    def acquire(self) -> None:
        """Enter it however long another thread holds it."""
        with self._turnstile:
            self._lock.acquire()
        self._begin()

    def finish(self) -> None:
        """Wait for the thread that holds it. After the store was closed, no other follows."""
        with self._lock:
            pass

    def require_room(self) -> None:
        """Refuse what queues and index have no room for."""
        stalled = self._dispatcher.stalled
        if stalled is not None:
            raise RefusedError(
                f"There is no space for queues and index: {stalled} The store accepts messages "
                "again once there is.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def _begin(self) -> None:
        try:
            assert self.held_since is None, "two threads hold the append lock"
            self.held_since = time.monotonic()
            if self._health.is_closed:
                text = "The store is closing. Try again when it is open."
                raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE)
            if self._dispatcher.stalled is not None:
                self.require_room()
        except BaseException as error:
            self.__exit__(None, error, None)
            raise

    def _busy(self) -> RefusedError:
        return RefusedError(
            "The log has been busy for longer than osPageCacheBusyTimeOutMills "
            f"({self._patience * 1000:.0f} ms). Try again.",
            PutStatus.OS_PAGECACHE_BUSY,
        )


class _Patiently:
    """An append lock for which a thread waits as long as it takes."""

    def __init__(self, lock: AppendLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.__exit__(kind, error, trace)


class Appender:
    """Numbers records, stamps them, writes them, and hands them to the dispatcher.

    Args:
        store: the open store. Its queues hold their next offsets.
        dispatcher: dispatches each block.
        health: fails with an error that makes it unsafe to continue.

    Attributes:
        log: the store's log.
        lock: everything below and the log's own methods need it.
        time: the source of storeTimestamps.
    """

    def __init__(self, store: OpenStore, dispatcher: Dispatcher, health: Health) -> None:
        self.log = store.log
        self.time = StoreTime(store.clock, store.log.last_timestamp)
        self._queues = store.queues
        self._host = store.config.store_host
        self._role = store.role
        self._dispatcher = dispatcher
        self._health = health
        patience = store.config.os_page_cache_busy_time_out_mills / 1000
        self.lock = AppendLock(patience, dispatcher, health)
        self._patiently = _Patiently(self.lock)
        self._next: dict[Route, int] = {}

    def append(self, block: Block) -> Stored:
        """Append the records of a checked block.

        Args:
            block: its data is changed in place, and must not be changed by others afterwards.

        Raises:
            RefusedError: the records were not appended. If `is_open` is set, they may be in the
                log.
        """
        with self.lock:
            if not self._role.accepts:  # `Admission` has looked, and it can have changed since
                raise RefusedError(
                    "The store has just become a slave, and accepts no messages.",
                    PutStatus.SERVICE_NOT_AVAILABLE,
                )
            log = self.log
            begin, units = log.published.offset, block.unit_ends
            try:
                placement = place(block.sizes, begin, log.segment_size, units)
            except TooLargeError as error:
                raise RefusedError(f"{error}.", PutStatus.MESSAGE_ILLEGAL) from error
            if placement.end > log.made_until:
                self.reserve_until(placement.end)
            next_offsets = self.next_offsets(block.routes)
            queue_offset = number_rows(block.route_of, block.queued, next_offsets)
            timestamp = self.time.stamp()
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

    # ---- steps of an append, for callers that combine them differently ---------------------------

    def appending(self, *, patient: bool = False) -> AbstractContextManager[None]:
        """Hold the append lock.

        Args:
            patient: wait for the lock however long another thread holds it.

        Raises:
            RefusedError: another thread holds the lock for longer than
                `osPageCacheBusyTimeOutMills`, the store is closing, or queues and index have no
                room. Or an invariant of the engine did not hold: then the store has failed, and
                `is_open` is set.
        """
        return self._patiently if patient else self.lock

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
        found = list(map(self._next.get, routes))
        for number, offset in enumerate(found):
            if offset is None:
                found[number] = self._queues.max_offset(*routes[number])
        return np.array(found, np.int64)

    def appended(self, appended: Appended, next_offsets: I8) -> None:
        """Register records that belong to the log now, and hand them to the dispatcher.

        Args:
            appended: the records.
            next_offsets: the next offset of each of the block's routes, after these records.

        Raises:
            RefusedError: queues and index cannot keep up with the log; the records are in the log.
        """
        routes, end = appended.block.routes, appended.end
        log, timestamp = self.log, appended.store_timestamp
        assert end <= log.published.offset, (
            f"records up to {end} go to the queues, and the log ends at {log.published.offset}"
        )
        assert timestamp >= log.last_timestamp, (
            f"records of {timestamp} ms follow one of {log.last_timestamp} ms"
        )
        self._next.update(zip(routes, next_offsets.tolist(), strict=True))
        log.last_timestamp = timestamp
        self.dispatch(appended)

    def dispatch(self, job: DispatchJob) -> None:
        """Hand records that are in the log to the dispatcher.

        Raises:
            RefusedError: queues and index cannot keep up with the log.
        """
        try:
            # Records in the log must be dispatched before any that come after them.
            while not self._dispatcher.submit(job, _WAIT_S):
                if self._health.is_closed:
                    self.lock.require_room()
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

    # ---- parts -----------------------------------------------------------------------------------

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
