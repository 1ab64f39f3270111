"""Delivers delayed messages when they are due: a thread that looks at each level every 100 ms.

The messages of a level are delivered in order, many in one append. Only an offset is in memory,
however many wait. A message that cannot be delivered is skipped; this is logged and counted. One
that a commit of a batch holds up is delivered after it, and so are those of its level behind it.

The time at which a message is due is its storeTimestamp plus its delay. If the clock went back, it
lies too far in the future: storeTimestamps never go back. So a message is also due when it was seen
in its queue for as long as its delay, by a clock that does not leap.

Delivery is once, also after a crash: the copy in the log is the progress, and the file with the
offsets only says where to begin looking for copies. It never covers copies that are not on disk.
(Upstream: ScheduleMessageService, which delivers again what it delivered in the last ten seconds.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.commit import Commit, HeldUpError
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.delay.copies import Copies, copies_of
from rmqstore_spark.engine.delay.delay_offsets import DelayOffsets
from rmqstore_spark.engine.delay.log_progress import progress_in_log
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.health import Periodic
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RmqStoreError,
    SegmentExpiredError,
)
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.queues.format import Entries
from rmqstore_spark.layout.record.block import Block, read_block

_log = logging.getLogger(__name__)

_MOST_NOTES: Final = 1000
_LEAST_STEP_S: Final = 0.1
_INTERVAL_MS: Final = 100
_FIRST_S: Final = 1.0
"""A store that is only opened and closed, as by `rmqstore recover`, delivers nothing."""
_PAUSE_S: Final = 10.0
_MOST_MESSAGES: Final = 1 << 13
_MOST_BYTES: Final = 16 << 20
_NEVER: Final = (1 << 63) - 1


class Waiting:
    """The messages of a delay level, by when they were seen. Used by one thread.

    However many messages wait, about a thousand notes are kept of them, so a message can seem to
    have arrived later than it did by a thousandth of its delay, or by 100 ms.

    Args:
        delay: seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._step = max(delay / _MOST_NOTES, _LEAST_STEP_S)
        self._notes: deque[tuple[int, float]] = deque()
        self._end = 0
        self._ripe = 0

    def note(self, end: int, now: float) -> None:
        """Note that the queue ends at an offset.

        Args:
            end: one past the offset of its last message.
            now: seconds of a clock that does not leap.
        """
        if end > self._end and (not self._notes or now - self._notes[-1][1] >= self._step):
            self._notes.append((end, now))
            self._end = end

    def ripe(self, now: float) -> int:
        """Return the offset up to which all messages have waited for as long as the delay."""
        while self._notes and now - self._notes[0][1] >= self._delay:
            self._ripe = self._notes.popleft()[0]
        return self._ripe


class Delivery:
    """Delivers the delayed messages of a store, in a thread, as long as its role says so.

    Args:
        store: the open store.
        admission: knows whether the store accepts messages.
        appender, flusher: append the copies, and flush the log before the progress is written.
        durability: waits until copies are committed, if the log is that of a group.
    """

    def __init__(
        self,
        store: OpenStore,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
        durability: Durability,
    ) -> None:
        self._durability = durability
        self._store = store
        self._queues = store.queues
        self._format = self._queues.format
        self._admission = admission
        self._appender = appender
        self._flusher = flusher
        self._health = admission.health
        self._delays = store.config.delays
        self._interval = store.config.flush_delay_offset_interval / 1000
        self._v6 = store.config.store_host_v6
        self._log = PublishedLog(store.log)
        self._waiting: list[Waiting] = []
        self._most: list[int] = []
        self._held: dict[int, Commit] = {}
        self._file: DelayOffsets | None = None
        self._offsets: dict[int, int] = {}
        self._is_certain = True
        self._delivered = self._skipped = 0
        self._forget()
        self._resume = time.monotonic() + _FIRST_S
        self._thread: Periodic | None = None
        store.role.watch(self)
        self.role_changed()

    def role_changed(self) -> None:
        """Begin to deliver, or end it: what comes next is another store's work."""
        if self._store.role.delivers:
            self._thread = Periodic("rmqstore-delay", _INTERVAL_MS, self._run, self._health)
        elif self._thread is not None:
            self._thread.close()
            self._thread = None
            try:
                self.save()
            except RmqStoreError as error:
                _log.warning("The progress of delayed messages is in the log only: %s", error)
            self._forget()

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        waiting = {
            str(level): max(0, self._queues.max_offset(SCHEDULE_TOPIC, level - 1) - offset)
            for level, offset in sorted(self._offsets.copy().items())
        }
        return {
            "delayedDelivered": self._delivered,
            "delayedSkipped": self._skipped,
            "delayedWaiting": waiting,
        }

    def stop(self) -> None:
        """Stop the thread; waits for a running append. The store is closed already for puts."""
        if self._thread is not None:
            self._thread.close()
        self._log.close()

    def _forget(self) -> None:
        """Know nothing of the progress: it is found out when there is something to deliver."""
        self._waiting = [Waiting(delay / 1000) for delay in self._delays]
        self._most = [_MOST_MESSAGES] * len(self._delays)
        self._held.clear()
        self._file, self._offsets, self._is_certain = None, {}, True
        self._resume = self._saved = time.monotonic()

    def save(self) -> None:
        """Write the progress, after the copies that it covers are flushed.

        For the thread, and for others once it was stopped.

        Raises:
            StoreWriteError: the log could not be flushed, or the file could not be written.
        """
        if self._file is None or not self._is_certain:
            return
        end = self._store.log.max_offset
        self._flusher.flush()
        self._file.save(self._offsets, end)
        self._saved = time.monotonic()

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Deliver what is due. Errors that may pass are logged, and tried again after a pause."""
        if time.monotonic() < self._resume:
            return
        try:
            self._admission.check_state()
            if not self._has_begun():
                return
            while self._deliver_once():
                pass
            if time.monotonic() - self._saved >= self._interval:
                self.save()
        except RefusedError:
            return
        except (RmqStoreError, OSError) as error:
            _log.error(
                "Delayed messages cannot be delivered, and wait: %s It is tried again in %.0f s.",
                error, _PAUSE_S,
            )  # fmt: skip
            self._resume = time.monotonic() + _PAUSE_S

    def _has_begun(self) -> bool:
        """Find out, once there are delayed messages, how far they were delivered before."""
        if self._file is not None:
            return True
        if not any((SCHEDULE_TOPIC, n) in self._queues for n in range(len(self._delays))):
            return False
        file, levels = DelayOffsets(self._store.path), range(1, len(self._delays) + 1)
        ends = {level: self._queues.max_offset(SCHEDULE_TOPIC, level - 1) for level in levels}
        file.check(ends, self._store.log.max_offset)
        end = self._store.log.max_offset  # only this thread appends copies
        found = progress_in_log(self._store, file, end, lambda: self._health.is_closed)
        if found is None:
            return False
        offsets = {level: max(file.offsets.get(level, 0), found.get(level, 0)) for level in levels}
        self._flusher.flush()
        file.save(offsets, end)  # from here on, copies tell the progress
        self._offsets, self._file = offsets, file
        return True

    def _deliver_once(self) -> bool:
        """Deliver some messages of each level that has due ones; return whether there were any."""
        moved = False
        for level in range(1, len(self._delays) + 1):
            if self._health.is_closed:
                return False
            held = self._held.get(level)
            if held is not None:
                if not held.reserved.over.is_set():
                    continue
                del self._held[level]
            moved = self._deliver(level) or moved
        return moved

    def _deliver(self, level: int) -> bool:
        queue_id, at = level - 1, self._offsets[level]
        end = self._queues.max_offset(SCHEDULE_TOPIC, queue_id)
        waiting, now = self._waiting[queue_id], time.monotonic()
        waiting.note(end, now)
        least = self._queues.min_offset(SCHEDULE_TOPIC, queue_id)
        if at < least:
            self._skip(level, at, least - at, "expired before they were delivered")
            self._offsets[level] = at = least
        if at >= end or not self._due(
            self._queues.read(SCHEDULE_TOPIC, queue_id, at, 1), at, level
        ):
            return False
        entries = self._queues.read(
            SCHEDULE_TOPIC, queue_id, at, min(end - at, self._most[queue_id])
        )
        entries = entries[: self._due(entries, at, level)]
        sizes = np.clip(entries["size"].astype(np.int64), 0, MAX_RECORD_SIZE)
        entries = entries[: max(1, int(np.searchsorted(np.cumsum(sizes), _MOST_BYTES, "right")))]
        return self._hand_over(level, at, entries)

    def _due(self, entries: Entries, at: int, level: int) -> int:
        """Return how many of some messages, from the first on, are due."""
        times = entries["tagsCode"].astype(np.int64)
        times[self._format.in_units(times)] = (
            _NEVER  # a broker's unit holds the time: by waiting then
        )
        ripe = self._waiting[level - 1].ripe(time.monotonic())
        due = (times <= self._store.clock()) | (at + np.arange(len(entries)) < ripe)
        due |= ~self._format.is_message(entries)
        return len(entries) if due.all() else int(np.argmin(due))

    def _hand_over(self, level: int, at: int, entries: Entries) -> bool:
        """Append copies of due messages; return whether the level moved on."""
        offsets = entries["physicalOffset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        inside = (offsets >= self._log.begin) & (offsets + sizes <= self._log.end)
        inside &= (sizes >= MIN_RECORD_SIZE) & (sizes <= MAX_RECORD_SIZE)
        inside &= self._format.is_message(entries)
        offsets, lengths = offsets[inside], sizes[inside].astype(np.int32)
        try:
            buffer, positions = self._log.read_spans(offsets, lengths)
        except SegmentExpiredError:
            return False  # the log's begin tells it the next time
        copies = copies_of(buffer, positions, lengths, offsets, store_host_v6=self._v6)
        try:
            if not self._append(copies, level, len(entries)):
                return True
        except HeldUpError as error:
            first = int(np.flatnonzero(inside)[copies.rows[int(np.argmax(error.rows))]])
            if first:
                return self._hand_over(level, at, entries[:first])
            commit = self._appender.commit
            if commit is not None:
                self._held[level] = commit
            return False
        self._offsets[level] = at + len(entries)
        lost = len(entries) - copies.count - int(np.count_nonzero(self._format.is_void(entries)))
        if lost > 0:
            fault = copies.fault or "its record has expired, or never was"
            self._skip(level, at, lost, fault)
        return True

    def _append(self, copies: Copies, level: int, count: int) -> bool:
        """Append copies; return False if they have to be tried one by one.

        Raises:
            HeldUpError: a commit holds some of them up. Those of other levels do not wait for it.
            RefusedError: nothing was appended, or the store is being closed or has failed.
        """
        if not copies.count:
            return True
        block = read_block(copies.data, max_rows=_MOST_MESSAGES)
        self._make_topics(block)
        reach("delay.before_append")
        try:
            stored = self._appender.append(block, patient=False)
            self._durability.await_copies(stored.end_offset, stored.term)
            self._delivered += len(block)
        except RefusedError as error:
            if error.is_open or self._health.is_closed:
                self._is_certain = False  # the next opening finds it in the log
            if error.status != PutStatus.MESSAGE_ILLEGAL:
                raise
            return self._is_alone(copies, level, count, error)
        reach("delay.after_append")
        return True

    def _is_alone(self, copies: Copies, level: int, count: int, error: RefusedError) -> bool:
        """Return whether a copy that no segment has room for is alone, and can be left out."""
        if count > 1:
            self._most[level - 1] = 1
            return False
        self._most[level - 1] = _MOST_MESSAGES
        self._skip(level, self._offsets[level], copies.count, str(error.args[0]))
        return True

    def _make_topics(self, block: Block) -> None:
        try:
            self._store.topics.restore(block.routes)
        except OptionError as error:
            _log.warning(
                "Delayed messages are delivered to topics that cannot be created: %s", error
            )

    def _skip(self, level: int, at: int, count: int, fault: str) -> None:
        self._skipped += count
        _log.error(
            "%d delayed message(s) of level %d from offset %d on were not delivered. The first: "
            "%s.",
            count, level, at, fault.rstrip("."),
        )  # fmt: skip
