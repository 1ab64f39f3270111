"""Lists the segments of a log that may expire, and knows which of them must stay for now, and why.

A segment stays while a client of this process reads it, and while messages in it are needed: half
messages of transactions that wait, and delayed messages that wait. That holds for followers too:
the next leader ends and delivers what waits.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from rmqstore_spark.engine.delay.delay_offsets import DelayOffsets, oldest_undelivered
from rmqstore_spark.engine.delay.followed import FollowedDelays
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.expiry.rule import Aged
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.transactions.followed import FollowedHalves
from rmqstore_spark.engine.transactions.transactions import Transactions
from rmqstore_spark.files.log_files import Segment, segment_start
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head

_SEGMENT: Final = re.compile(r"(?:commitlog|dledger-[^/]+/data)/([^/]+)")


class OldSegments:
    """The segments of a log that may expire. Not thread-safe.

    A segment may expire if all its records are on disk and in queues and index, and a record of a
    later segment is too. So the last segment never expires, nor does a block that is still hidden,
    which lies after the log's end.

    Args:
        log: the log. All of it is in queues and index when this object is made.
        store: the store directory.
        folder: the folder of the log; of a member, that of its group's.
        dispatcher: writes queues and index.
    """

    def __init__(
        self, log: CommitLogWriter, store: str, folder: str, dispatcher: Dispatcher
    ) -> None:
        self._log = log
        self._store = store
        self._folder = folder
        self._dispatcher = dispatcher
        self._opened_at = log.max_offset
        self._times: dict[int, int] = {}

    def oldest(self, before: int, at_least: int) -> list[Aged]:
        """Return the oldest segments that may expire, ascending.

        A segment without a readable first record has the time of the next one that has one: it
        expires no earlier than that one could.

        Args:
            before: only segments all of whose messages were stored before this time, milliseconds
                since the epoch; a segment behind a younger one is not looked at.
            at_least: so many segments are returned whatever their age.

        Raises:
            RmqStoreError: the log's folder or a file cannot be read.
        """
        end = self.done()
        files = LocalFiles()
        try:
            plain = Segments.load(files, [os.path.join(self._store, "commitlog")])
            log = CommitLog(plain)
            if self._log.lead:
                log = CommitLog(plain, Segments.load(files, [self._folder]), end)
            whole = [part.segment for part in log.segments() if part.segment.end < end]
            if not whole:
                return []
            self._forget(whole[0].start)
            return list(self._aged(log, whole, before, at_least))
        finally:
            files.close()

    def _aged(
        self, log: CommitLog, whole: Sequence[Segment], before: int, at_least: int
    ) -> Iterator[Aged]:
        """Yield segments as `oldest` does: it reads their times one by one."""
        starts = [segment.start for segment in whole] + [whole[-1].end]
        following = 0
        for number, segment in enumerate(whole):
            following = max(following, number + 1)
            while following < len(starts) and self._time(log, starts[following]) < 0:
                following += 1
            if following == len(starts):
                return
            until = self._time(log, starts[following])
            if number >= at_least and until >= before:
                return
            yield Aged(segment.start, segment.end, self._time(log, segment.start), until)

    def _forget(self, before: int) -> None:
        """Forget the times of segments before a physical offset, which are gone."""
        self._times = {start: time for start, time in self._times.items() if start >= before}

    def done(self) -> int:
        """Return the physical offset before which all of the log is on disk and in queues."""
        done = max(self._opened_at, self._dispatcher.done_until)
        return min(self._log.flushed_offset, done)

    def _time(self, log: CommitLog, start: int) -> int:
        """Return the storeTimestamp of a segment's first record; -1 if it cannot be read."""
        known = self._times.get(start)
        if known is None:
            segment = log.segment_at(start)
            head = record_head(log, start + segment.lead) if segment is not None else None
            if head is None:
                return -1
            known = self._times[start] = int(head.store_timestamp[0])
        return known


class SegmentUses:
    """The segments in use. Thread-safe.

    Args:
        patience_ms: how long a segment in use is kept after it was first due.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience = patience_ms / 1000
        self._lock = threading.Lock()
        self._readers: Counter[int] = Counter()
        self._due_since: dict[int, float] = {}

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Mark the file at a path, relative to the store, as in use; only segments count.

        A segment may expire all the same in the end: then a client that has it open can read on.
        """
        found = _SEGMENT.fullmatch(path)
        start = segment_start(found[1]) if found else None
        if start is None:
            yield
            return
        with self._lock:
            self._readers[start] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers[start] -= 1
                if not self._readers[start]:
                    del self._readers[start]

    def delays(self, start: int) -> bool:
        """Return whether a segment that is due must be kept for now, because it is in use."""
        with self._lock:
            if not self._readers[start]:
                self._due_since.pop(start, None)
                return False
            since = self._due_since.setdefault(start, time.monotonic())
            if time.monotonic() - since < self._patience:
                return True
            del self._due_since[start]
            return False


class Unneeded(NamedTuple):
    """The first of some segments that are due.

    Attributes:
        segments: those before the first one that must stay.
        remark: why that one stays; empty if none does.
        waits: whether it stays for messages that wait, which can take hours.
        undelivered: physical offset of the oldest delayed message that waits; None if none does. A
            segment behind it may go only as long as the disk has no room for it.
        unended: the same for half messages that may wait.
    """

    segments: Sequence[Aged]
    remark: str
    undelivered: int | None = None
    unended: int | None = None
    waits: bool = False

    def lost_with(self, segment: Aged) -> str:
        """Return what waits in a segment, or before it, and is lost with it; "" if nothing is."""
        if self.undelivered is not None and segment.end > self.undelivered:
            return "delayed messages that wait: they are not delivered"
        if self.has_halves(segment):
            return "half messages that may wait: they can no longer be committed"
        return ""

    def has_halves(self, segment: Aged) -> bool:
        """Return whether half messages that may wait are in a segment, or before it."""
        return self.unended is not None and segment.end > self.unended


class NeededSegments:
    """The segments that something needs.

    Args:
        store: the open store.
        transactions: its transactions.
        done: see `OldSegments.done`.
        is_over: whether the store is being closed.

    Attributes:
        uses: the segments that clients are reading.
    """

    def __init__(
        self,
        store: OpenStore,
        transactions: Transactions,
        done: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> None:
        self._store = store
        self._config = store.config
        self._role = store.role
        self._transactions = transactions
        self._followed_delays = FollowedDelays(store, done, is_over)
        self._followed_halves = FollowedHalves(store, done)
        self.uses = SegmentUses(store.config.redelete_hanged_file_interval)

    def unneeded(self, due: Sequence[Aged], *, has_room: bool) -> Unneeded:
        """Return the segments before the first one that must stay.

        Args:
            due: segments, the oldest first.
            has_room: whether the disk has room for what may go without it: delayed messages that
                wait, and half messages of which it is not certain that they do.

        Raises:
            RmqStoreError: it is not known what waits.
        """
        return self._without_waiting(self._without_used(self._all(due)), has_room=has_room)

    def keeps(self, found: Unneeded, segment: Aged) -> bool:
        """Return whether a segment stays now, as it is certain meanwhile which half messages wait.

        A member that has begun to lead, or has a leader that tells, knows it.
        """
        return self._role.knows_what_ended and found.has_halves(segment)

    def awaited(self, segments: Sequence[Aged], *, has_room: bool) -> str:
        """Return why one of some segments would stay for messages that wait; empty if none would.

        Args:
            segments: the oldest first.
            has_room: as above.

        Raises:
            RmqStoreError: it is not known what waits.
        """
        return self._without_waiting(self._all(segments), has_room=has_room).remark

    def _all(self, due: Sequence[Aged]) -> Unneeded:
        if not (due and self._role.knows_what_waits):
            return Unneeded(due, "")
        until = due[-1].end
        return Unneeded(due, "", self._undelivered(until), self._unended(until))

    def _without_waiting(self, found: Unneeded, *, has_room: bool) -> Unneeded:
        if has_room or self._role.knows_what_ended:
            found = self._without_halves(found)
        return self._without_delayed(found) if has_room else found

    def _without_used(self, found: Unneeded) -> Unneeded:
        for number, segment in enumerate(found.segments):
            if self.uses.delays(segment.start):
                remark = (
                    f"A client or slave reads the segment {segment.start:020}: it is kept for at "
                    "most redeleteHangedFileInterval "
                    f"({self._config.redelete_hanged_file_interval} ms)."
                )
                return found._replace(segments=found.segments[:number], remark=remark)
        return found

    def _without_halves(self, found: Unneeded) -> Unneeded:
        return _before(
            found,
            found.unended,
            "half messages of transactions that wait: it is kept until they are ended or given up.",
        )

    def _without_delayed(self, found: Unneeded) -> Unneeded:
        return _before(
            found,
            found.undelivered,
            "delayed messages that wait: it is kept until they are delivered and their progress is "
            "written (flushDelayOffsetInterval), or until the disk has no room for it.",
        )

    def _unended(self, until: int) -> int | None:
        """Return the oldest half message that may wait."""
        if not self._transactions.has_halves:
            return None
        if self._role.follows:
            return self._followed_halves.oldest(until)
        return self._transactions.oldest()

    def _undelivered(self, until: int) -> int | None:
        """Return the oldest delayed message that waits, by the progress that is on disk.

        What was delivered since may be in memory only: after a power cut, it has to be delivered
        again.
        """
        queues, levels = self._store.queues, len(self._config.delays)
        if oldest_undelivered(queues, levels, {}) is None:  # few stores have any
            return None
        file = DelayOffsets(self._store.path)
        if self._role.follows and self._role.is_elected:
            return self._followed_delays.oldest(file, until)
        return oldest_undelivered(queues, levels, file.offsets)


def _before(found: Unneeded, oldest: int | None, reason: str) -> Unneeded:
    """Leave out the segments from the one with a physical offset on."""
    for number, segment in enumerate(found.segments):
        if oldest is not None and segment.end > oldest:
            remark = f"The segment {segment.start:020}, or one before it, has {reason}"
            return found._replace(segments=found.segments[:number], remark=remark, waits=True)
    return found
