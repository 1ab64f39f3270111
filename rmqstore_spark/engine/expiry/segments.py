"""Lists the segments of a store's log that may expire, and when their messages were stored."""

from __future__ import annotations

from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.expiry.rule import Aged
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head


class OldSegments:
    """The segments of a log that may expire. Not thread-safe.

    A segment may expire if all its records are on disk and in queues and index, and a record of a
    later segment is too. So the last segment never expires, nor does a block that is still hidden,
    which lies after the log's end.

    Args:
        log: the log. All of it is in queues and index when this object is made.
        folder: its folder.
        dispatcher: writes queues and index.
    """

    def __init__(self, log: CommitLogWriter, folder: str, dispatcher: Dispatcher) -> None:
        self._log = log
        self._folder = folder
        self._dispatcher = dispatcher
        self._opened_at = log.max_offset
        self._times: dict[int, int] = {}

    def list(self) -> list[Aged]:
        """Return the segments that may expire, ascending.

        A segment without a readable first record has the time of the next one that has one: it
        expires no earlier than that one could.

        Raises:
            RmqStoreError: the log's folder or a file cannot be read.
        """
        done = max(self._opened_at, self._dispatcher.done_until)
        end = min(self._log.flushed_offset, done)
        files = LocalFiles()
        try:
            log = CommitLog(Segments.load(files, [self._folder]))
            whole = [part.segment for part in log.segments() if part.segment.end < end]
            if not whole:
                return []
            times = [self._time(log, segment.start) for segment in whole]
            times.append(self._time(log, whole[-1].end))
        finally:
            files.close()
        self._times = {
            start: time for start, time in self._times.items() if start >= whole[0].start
        }
        found = []
        until = times[-1]
        for segment, time in zip(reversed(whole), reversed(times[:-1]), strict=True):
            if until >= 0:
                found.append(Aged(segment.start, segment.end, time, until))
            until = time if time >= 0 else until
        return found[::-1]

    def _time(self, log: CommitLog, start: int) -> int:
        """Return the storeTimestamp of a segment's first record; -1 if it cannot be read."""
        known = self._times.get(start)
        if known is None:
            head = record_head(log, start)
            if head is None:
                return -1
            known = self._times[start] = int(head.store_timestamp[0])
        return known
