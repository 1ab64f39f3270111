"""Finds where the log of a store ends, and whether a crash explains that end.

The walk starts as late as is safe (docs/format.md, "Start, recovery"): after a kill, at the newest
segment that the checkpoint vouches for; after a clean stop, at a record not far before the newest
one that a queue names. The first record that is not whole ends the log, or the end of its files. A
crash explains it if it lies after what the checkpoint knows as flushed. If it lies before, it is
damage. `log_reach` compares the end with what else is known of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rmqstore_spark.layout.checkpoint import GRACE_MS, Checkpoint
from rmqstore_spark.layout.record.format import batch_ends
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head, stated_place
from rmqstore_spark.reader.log.walk import Flaw, Stretch, walk_log


@dataclass(frozen=True)
class LogEnd:
    """The result of the walk.

    Attributes:
        start: physical offset at which the walk started.
        offset: physical offset at which the log ends.
        cause: what ends it there; "" if the last file is full.
        newest: storeTimestamp of the last record; 0 if the walk met none.
        damage: messages that were known to be flushed are past the end, so no crash explains it.
    """

    start: int
    offset: int
    cause: str
    newest: int
    damage: bool


def unclean_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Return where to start the walk after a kill: at a segment that the checkpoint vouches for."""
    times = checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp
    vouched = min(times) - GRACE_MS
    for segment in reversed(log.segments()):
        first = record_head(log, segment.start + segment.lead)
        if first is not None and 0 < int(first.store_timestamp[0]) <= vouched:
            return segment.start
    return log.min_offset


def find_end(
    log: CommitLog,
    start: int,
    *,
    flushed: int,
    latest: int,
    named_end: int = 0,
    kept: int = 0,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> LogEnd:
    """Walk the log to its end. The CRC of every body is checked.

    Args:
        start: physical offset of a record.
        flushed: the checkpoint's physicMsgTimestamp.
        latest: later storeTimestamps are ignored: nothing protects the field, and times never go
            back.
        named_end: the log's end when the store was closed cleanly, as its queues name it; 0 without
            them. A log that ends there is whole, whatever the checkpoint's time is.
        kept: a Spark batch that begins here or later, and whose rest is missing, is left out of the
            log: what is left of it would be read, and its marker is gone, so that Spark would write
            all of it again.
        progress: called with the bytes done and the total bytes.
    """
    newest, at = 0, start
    batch = _Batch(0, 0, 0, 0)
    total = log.file_end - start
    for item in walk_log(log, start, log.file_end, resume=False):
        if isinstance(item, Flaw):
            stranger = stated_place(log, item.offset)
            if stranger is not None:
                cause = (
                    f"the file begins with the record of {stranger}: it is a copy of another one"
                )
                return LogEnd(start, item.offset, cause, newest, True)
            is_named = 0 < named_end == item.offset
            damage = item.offset < named_end or (
                not is_named and _is_below(log, item, newest, flushed)
            )
            end = LogEnd(start, item.offset, item.cause, newest, damage)
            return batch.without_part(end, kept)
        times = item.records.store_timestamp
        batch = batch.followed_by(item, newest, latest)
        newest = max(newest, int(times.max(initial=0, where=times <= latest)))
        at = item.end
        progress(at - start, total)
    damage = newest < flushed and log.file_end != named_end
    end = LogEnd(start, log.file_end, "", newest, damage)
    return batch.without_part(end, kept)


class _Batch(NamedTuple):
    """The Spark batch that the last records belong to.

    Attributes:
        begin: physical offset of its first record.
        end: physical offset where it should end; 0 without a batch.
        time: storeTimestamp of its records.
        newest: storeTimestamp of the last record before it.
    """

    begin: int
    end: int
    time: int
    newest: int

    def followed_by(self, more: Stretch, newest: int, latest: int) -> _Batch:
        """Return the batch that the last of more records belong to; see `find_end`."""
        times = more.records.store_timestamp
        ends = batch_ends(more.records, more.offsets)
        begins = np.flatnonzero(ends)
        if len(begins):
            row = int(begins[-1])
            before = times[:row]
            newest = max(newest, int(before.max(initial=0, where=before <= latest)))
            begun = _Batch(int(more.offsets[row]), int(ends[row]), int(times[row]), newest)
            times = times[row:]
        else:
            begun = self
        # A slave that became the master within a batch has put other records behind its part.
        return begun if (times == begun.time).all() else _Batch(0, 0, 0, 0)

    def without_part(self, end: LogEnd, kept: int) -> LogEnd:
        """Return an end of the log, or this batch's begin if the rest of it is missing."""
        if self.begin < kept or not self.begin < end.offset < self.end:
            return end
        cause = f"a Spark batch begins here whose records from {end.offset} on are missing"
        return replace(end, offset=self.begin, cause=cause, newest=self.newest)


def _is_below(log: CommitLog, flaw: Flaw, newest: int, flushed: int) -> bool:
    """Return whether a flaw lies before the message that the checkpoint knows as flushed.

    The time of that message is `flushed`, and times never go back. Other messages of the same
    millisecond may follow it without having reached the disk, so only older messages are certainly
    before it. (A block is later than all before it: if its time is known as flushed, it was
    published. If a power cut has torn its header, the record before it tells.)
    """
    if flaw.unpublished:
        return flaw.unpublished <= flushed
    record = record_head(log, flaw.offset)
    if record is not None:
        return int(record.store_timestamp[0]) < flushed
    return newest < flushed
