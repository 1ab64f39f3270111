"""Finds the block of a commit that was killed: a Spark batch that nobody has seen.

Its bytes need not be kept when the log is cut, as those that may be messages are. A large block
begins some way behind the log's end, with nothing but zeros before it (docs/format.md, "A block
that is not published yet"). If something else comes first, or the block's first record has not
reached the disk, the block is not found.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rmqstore_spark.engine.log.placement import blank_head
from rmqstore_spark.files.durable import written_begin
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE
from rmqstore_spark.layout.record.format import stated_batch_end
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.walk import unpublished_time

_ZEROS: Final = 3
"""A record, or a blank, can begin with as many: its size takes four bytes."""
_HEAD: Final = MIN_RECORD_SIZE + 24
"""Bytes that have all fixed fields, whatever the hosts are."""


class Unpublished(NamedTuple):
    """A block that was not published.

    Attributes:
        head: physical offset of its first record, which hides it.
        end: physical offset where it ends.
    """

    head: int
    end: int


def find_unpublished(log: CommitLog, end: int, flushed: int) -> Unpublished | None:
    """Find a block that was not published, as the first thing behind the log's end.

    Args:
        log: the log, as its files are.
        end: physical offset where it ends.
        flushed: the checkpoint's physicMsgTimestamp, before which no block is that was not
            published.
    """
    for segment in log.plain:
        if segment.end <= end:
            continue
        at = written_begin(segment.path, max(0, end - segment.start))
        if at is None:
            continue
        first = segment.start + at
        for begin in range(max(end, segment.start, first - _ZEROS), first + 1):
            left = segment.end - begin
            blank = blank_head(begin, log.plain.segment_size) if left >= BLANK_SIZE else b""
            is_blank = bool(blank) and log.read(begin, BLANK_SIZE) == blank
            found = _block_at(log, segment.end if is_blank else begin, flushed)
            if found is not None:
                return found
        return None
    return None


def _block_at(log: CommitLog, head: int, flushed: int) -> Unpublished | None:
    segment = log.segment_at(head)
    if segment is None or segment.end - head < MIN_RECORD_SIZE:
        return None
    data = np.frombuffer(log.read(head, min(_HEAD, segment.end - head)), np.uint8)
    time = unpublished_time(data, head)
    if time is None or time <= flushed:
        return None
    end = stated_batch_end(data, 0)
    return Unpublished(head, end) if head < end <= log.file_end else None
