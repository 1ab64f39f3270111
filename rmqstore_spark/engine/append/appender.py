"""Assigns offsets to records and appends them to the log, under the append lock.

A commit writes its block without that lock, beyond the log's end. Others append before it
meanwhile, except to the same queues: the offsets there come after those of the batch.

(Upstream: CommitLog.asyncPutMessage, putMessageLock, topicQueueTable.)
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.append_lock import AppendLock, Patiently
from rmqstore_spark.engine.append.commit import Commit, HeldUpError
from rmqstore_spark.engine.append.store_time import StoreTime
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.dispatch.jobs import Appended, DispatchJob, SingleAppended
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.placement import Placement, TooLargeError, place
from rmqstore_spark.engine.log.reserved import ReservedBlock
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.layout.record.block import Block, Route, number_rows, stamp_records
from rmqstore_spark.layout.record.delayed import due_codes
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import I8

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WAIT_S: Final = 0.2


@dataclass(slots=True)
class Stored:
    """The places of n stored records.

    Attributes:
        physical_offset: n, where each starts in the log.
        queue_offset: n, the offset of each in its queue.
        end_offset: where the log ends after them.
        term: the term in which they were proposed to a group; None without one.
    """

    physical_offset: I8
    queue_offset: I8
    end_offset: int
    term: LeaderTerm | None = None


class SinglePlace(NamedTuple):
    """The place of a single record; see `Stored`."""

    physical_offset: int
    queue_offset: int
    end_offset: int


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
        commit: the commit that writes its block, if there is one.
    """

    def __init__(self, store: OpenStore, dispatcher: Dispatcher, health: Health) -> None:
        self.log = store.log
        self.time = StoreTime(store.clock, store.log.last_timestamp)
        self._queues = store.queues
        self._queue_ends = store.queue_ends
        self._host = store.config.store_host
        self._checkpoint = store.checkpoint
        self._role = store.role
        self._dispatcher = dispatcher
        self._health = health
        patience = store.config.os_page_cache_busy_time_out_mills / 1000
        self.lock = AppendLock(patience, dispatcher, health)
        self._patiently = Patiently(self.lock)
        self._next: dict[Route, int] = {}
        self.commit: Commit | None = None

    def append(self, block: Block, *, patient: bool = True) -> Stored:
        """Append the records of a checked block.

        Args:
            block: its data is changed in place, and must not be changed by others afterwards.
            patient: wait for a commit to the same queues, whose records come first, or that leaves
                no room, as long as for the append lock. Who appends for others, with a lock that
                they need or in their thread, is not patient.

        Raises:
            HeldUpError: there is such a commit, and the caller is not patient.
            RefusedError: the records were not appended. If `is_open` is set, they may be in the
                log.
        """
        began = time.monotonic()
        end = self.log.published.offset + len(block.data)
        if end > self.log.made_until and self._role.accepts and not self._health.is_closed:
            # Before the lock is taken: a folder is flushed, and others have room meanwhile.
            self.reserve_until(end)
        while True:
            with self.lock:
                commit = self.commit
                has_room = self._dispatcher.has_room(len(block.data))
                if commit is not None and commit.holds_up(block.routes):
                    if not patient:
                        raise HeldUpError(commit.rows_held_up(block))
                elif has_room:
                    stored = self._append(block)
                    if stored is not None:
                        return stored
                    if not patient:
                        raise HeldUpError(np.ones(len(block), np.bool_))
            if not has_room:  # others need the lock meanwhile
                self._dispatcher.await_room(len(block.data), _WAIT_S)
                continue
            assert commit is not None, "a block has no room, and no commit takes it"
            self._await(commit, began)

    def await_commit(self, since: float) -> None:
        """Wait until a commit that holds others up is over, if there is one; see `append`.

        Args:
            since: when the caller began to wait, by `time.monotonic`.

        Raises:
            RefusedError: it takes too long.
        """
        commit = self.commit
        if commit is not None:
            self._await(commit, since)

    def _await(self, commit: Commit, since: float) -> None:
        left = since + self.lock.patience - time.monotonic()
        if left <= 0 or not commit.reserved.over.wait(left):
            raise self.lock.busy()

    def append_single(self, record: SingleRecord) -> SinglePlace | None:
        """Append a record if it can be written where the log ends, and nothing is in the way.

        Not to the log of a group, whose records are entries.

        Returns:
            Its place; None if nothing was done, and `append` is to be asked, with a block.

        Raises:
            RefusedError: as `append`.
        """
        route, data = record.route, record.data
        with self.lock:
            log = self.log
            if (
                self.commit is not None
                or not self._role.accepts
                or not self._dispatcher.has_room(len(data))
                or len(data) > log.room
                or route.topic == SCHEDULE_TOPIC
            ):
                return None
            begin = log.published.offset
            queue_offset = self._next.get(route)
            if queue_offset is None:
                queue_offset = self._end(route)
            timestamp = self.time.stamp()
            record.stamp(queue_offset, begin, timestamp, self._host)
            reach("put.before_write")
            try:
                log.write_single(begin, data)
            except StoreWriteError as error:
                raise self._failed_write(error) from error
            reach("put.after_write")
            end = begin + len(data)
            assert end == log.published.offset, (
                f"a record up to {end} goes to its queue, and the log ends elsewhere"
            )
            assert timestamp >= log.last_timestamp, (
                f"a record of {timestamp} ms follows one of {log.last_timestamp} ms"
            )
            self._next[route] = queue_offset + 1
            log.last_timestamp = timestamp
            self.dispatch(SingleAppended(record, begin, queue_offset, timestamp, len(data), end))
            reach("put.after_dispatch")
        return SinglePlace(begin, queue_offset, end)

    def _append(self, block: Block) -> Stored | None:
        """Append a block; return None if it has no room before a commit. Needs the append lock."""
        if not self._role.accepts:  # `Admission` has looked, and it can have changed since
            raise RefusedError(
                "The store has just become a slave, and accepts no messages.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
        log = self.log
        # Members of a group place each entry where it fits, whatever belongs together.
        begin, units = log.end, None if log.lead else block.unit_ends
        try:
            placement = place(block.sizes, begin, log.segment_size, units, block.starts, log.lead)
        except TooLargeError as error:
            raise RefusedError(f"{error}.", PutStatus.MESSAGE_ILLEGAL) from error
        if log.reserved is not None and placement.end > log.reserved.limit:
            return None
        if placement.end > log.made_until:
            self.reserve_until(placement.end)
        next_offsets = self.next_offsets(block.routes)
        first_offsets = next_offsets.copy()
        queue_offset = number_rows(block.route_of, block.queued, next_offsets)
        timestamp = self.time.stamp()
        stamp_records(
            block.data, block.starts, queue_offset, placement.physical, timestamp, self._host
        )
        reach("put.before_write")
        term = log.term  # now: if it is over behind the write, nobody would wait for its end
        self._write(placement, block)
        reach("put.after_write")
        codes = due_codes(block.routes, block.route_of, block.tags_code, timestamp)
        if codes is not block.tags_code:
            block = replace(block, tags_code=codes)
        appended = Appended(
            block, placement.physical, queue_offset, timestamp, first_offsets=first_offsets
        )
        self.appended(appended, next_offsets)
        reach("put.after_dispatch")
        return Stored(placement.physical, queue_offset, placement.end, term)

    # ---- a commit, which writes its block while others append -----------------------------------

    def begin_commit(self, routes: Collection[Route], room: int, span: int) -> Commit:
        """Reserve the place of a commit's block. Needs the append lock.

        Until `publish_commit` or `give_up_commit`, records for the same queues wait: they get later
        offsets there. Times that others get meanwhile stay out of the checkpoint if the block's is
        not later: on disk, a block that is not published is always later than the checkpoint.

        Args:
            routes: the queues of the block.
            room: bytes that others may append before it, about.
            span: in how many milliseconds it will be part of the log, about.
        """
        begin = self.log.published.offset
        offsets = dict(zip(routes, self.next_offsets([*routes]).tolist(), strict=True))
        topics = frozenset(route.topic for route in routes)
        ahead = self.time.stamp_ahead(span)
        self._checkpoint.hold(ahead.timestamp - 1)
        self.commit = Commit(self.log.reserve(room), offsets, topics, ahead, begin)
        return self.commit

    def is_overtaken(self, commit: Commit) -> bool:
        """Return whether records that go before a commit's block have its time, or a later one.

        Then its records need another time. Needs the append lock.
        """
        return self.time.has_reached(commit.timestamp)

    def renew_time(self, commit: Commit, span: int) -> Commit:
        """Return a commit with another time for its records. Needs the append lock.

        Args:
            commit: the commit.
            span: in how many milliseconds it will be part of the log, about.
        """
        self.commit = replace(commit, time=self.time.stamp_ahead(span))
        return self.commit

    def publish_commit(
        self, commit: Commit, end: int, offsets: Mapping[Route, int], jobs: Sequence[DispatchJob]
    ) -> None:
        """Make a commit's block, which is on disk, part of the log. Needs the append lock.

        Args:
            commit: the commit.
            end: where the log ends then.
            offsets: the next offset of each of its queues.
            jobs: put its records into queues and index.

        Raises:
            StoreWriteError: the write failed. It is unknown whether a crash leaves the block
                visible.
        """
        assert not self.is_overtaken(commit), (
            f"a batch of {commit.timestamp} ms would follow records that are not earlier"
        )
        self.log.publish_reserved(commit.reserved, end, commit.timestamp - 1)
        self.log.last_timestamp = commit.timestamp
        self._next.update(offsets)
        self.time.continue_after(commit.timestamp)
        self._end_commit()
        self._dispatcher.submit_all(jobs)

    def begin_run(self, routes: Collection[Route], block: ReservedBlock) -> Commit:
        """Number a batch of a group's log, all of it under the append lock.

        Args:
            routes: the queues of the batch.
            block: where it begins.
        """
        offsets = dict(zip(routes, self.next_offsets([*routes]).tolist(), strict=True))
        topics = frozenset(route.topic for route in routes)
        ahead = self.time.stamp_ahead(0)
        self.time.continue_after(ahead.timestamp)
        return Commit(block, offsets, topics, ahead, self.log.max_offset)

    def end_run(self, offsets: Mapping[Route, int]) -> None:
        """Register the next offset of each queue of a batch that was proposed."""
        self._next.update(offsets)

    def give_up_commit(self, commit: Commit) -> None:
        """Let others append in place of a commit without a block. Needs the append lock.

        Raises:
            StoreWriteError: a segment that was created for it could not be removed.
        """
        self._end_commit()
        self.log.give_up(commit.reserved)

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

    def ending_commit(self) -> AbstractContextManager[None]:
        """Hold the append lock to publish a commit or to give it up; see `AppendLock.acquire`."""
        return Patiently(self.lock, checked=False)

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
                found[number] = self._end(routes[number])
        return np.array(found, np.int64)

    def _end(self, route: Route) -> int:
        """Return the next offset of a queue of which this appender has no message yet."""
        if self._queues.begins(*route):
            return self._queues.max_offset(*route)
        return self._queue_ends.of(route)

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
                    self.lock.require_room(is_open=True)
        except StoreWriteError as error:
            self._health.fail(error)
            raise RefusedError(str(error), PutStatus.SERVICE_NOT_AVAILABLE, is_open=True) from error

    def await_dispatched(self, end: int) -> bool:
        """Wait for records up to a physical offset to be dispatched; see `Dispatcher.await_end`."""
        return self._dispatcher.await_end(end)

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
            raise self._failed_write(error) from error

    def _failed_write(self, error: StoreWriteError) -> RefusedError:
        """Return what a caller gets whose records could not be written."""
        has_failed = error.errno not in _NO_ROOM or self.log.failure is not None
        if has_failed:
            self._health.fail(error)
        return RefusedError(str(error), PutStatus.SERVICE_NOT_AVAILABLE, is_open=has_failed)

    def _end_commit(self) -> None:
        self._checkpoint.release()
        self.commit = None
