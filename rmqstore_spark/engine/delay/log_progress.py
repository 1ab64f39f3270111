"""Finds in the log how far each delay level was delivered, as the file with the offsets may not.

The file counts the copies before its `logOffset`. What this store delivered since is told by its
copies, which name the messages that waited. In two cases brokers may have delivered messages that
the file does not count:

- A level is not in the file.
- The store is a member of a group. As long as another member leads, nobody writes this one's file,
  unless it is copied from a leader of this project.

A broker's copies are noted while the log is read. Then the messages that wait by the file are read,
in the order of their queue, and compared with them. These were to be read anyway, or are as many as
the copies; the others are not read: it ends where messages are neither due nor delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.delay.copies import BrokersCopies, Prints, prints_of
from rmqstore_spark.engine.delay.delay_offsets import LevelProgress, first_undelivered
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.recovery.redispatch import LogBlock, log_blocks
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC
from rmqstore_spark.layout.fields import (
    MAX_RECORD_SIZE,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
)
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import load_log

_MOST_AT_ONCE: Final = 1 << 20
_MOST_MESSAGES: Final = 1 << 13
_MOST_BYTES: Final = 16 << 20


def progress_in_log(
    store: OpenStore, file: LevelProgress, end: int, is_over: Callable[[], bool]
) -> dict[int, int] | None:
    """Return what the log tells of the progress, by level.

    Args:
        store: the open store.
        file: what the file with the offsets tells.
        end: physical offset up to which the log is read; its queues have all before it.
        is_over: whether nobody needs the answer any more.

    Returns:
        The offset behind the last message that is known to be delivered, of levels that have one;
        None if nobody needs it.

    Raises:
        RmqStoreError: the log cannot be read.
    """
    starts = _starts(store, file)
    found: dict[int, int] = {}
    if not starts:
        return found
    by_brokers = store.role.is_elected or any(level not in file.offsets for level in starts)
    files = LocalFiles()
    try:
        log, _ = load_log(StoreDirectory(files, store.path))
        copies, begin = BrokersCopies(), max(min(starts.values()), store.log.min_offset)
        for part in log_blocks(log, max(begin, log.min_offset), end):
            if is_over():
                return None
            if by_brokers:
                copies.note(part)
            for level, offset in _levels(store.queues, log, _sources(part)):
                found[level] = max(found.get(level, 0), offset)
        for level, start in starts.items() if by_brokers else ():
            unmatched = copies.begin_match(start)
            if not unmatched:
                continue
            first = file.offsets.get(level, 0)
            for prints, behind, is_due in _waiting(store, log, level, first):
                if is_over():
                    return None
                has_copy = unmatched.match(prints)
                if has_copy.any():
                    found[level] = max(found.get(level, 0), int(behind[has_copy].max()))
                if not unmatched or not (is_due or has_copy.any()):
                    break
    finally:
        files.close()
    return found


def _starts(store: OpenStore, file: LevelProgress) -> dict[int, int]:
    """Return from where on the log can have copies that the file does not count, by level.

    A copy is behind the message that waited. Levels of which no message waits by the file are left
    out.
    """
    starts = dict[int, int]()
    undelivered = first_undelivered(store.queues, len(store.config.delays), file.offsets)
    for level, first in undelivered.items():
        start = store.log.unit_start(first)
        if level not in file.offsets:
            starts[level] = start
        elif file.log_offset is not None:
            starts[level] = max(start, file.log_offset)
        elif store.role.is_elected:
            starts[level] = start
    return starts


def _waiting(
    store: OpenStore, log: CommitLog, level: int, first: int
) -> Iterator[tuple[Prints, I8, bool]]:
    """Yield what is the same of messages that waited and their copies, some messages at a time.

    Yields:
        A number for each message, the offset behind it, and whether one of them is due.
    """
    queues, queue_id = store.queues, level - 1
    at = max(first, queues.min_offset(SCHEDULE_TOPIC, queue_id))
    end = queues.max_offset(SCHEDULE_TOPIC, queue_id)
    while at < end:
        entries = queues.read(SCHEDULE_TOPIC, queue_id, at, min(end - at, _MOST_MESSAGES))
        if not len(entries):
            return  # its file expires
        sizes = np.clip(entries["size"].astype(np.int64), 0, MAX_RECORD_SIZE)
        entries = entries[: max(1, int(np.searchsorted(np.cumsum(sizes), _MOST_BYTES, "right")))]
        times = entries["tagsCode"].astype(np.int64)
        is_due = bool(((times <= store.clock()) | queues.format.in_units(times)).any())
        offsets = entries["physicalOffset"].astype(np.int64)
        lengths = entries["size"].astype(np.int32)
        there = queues.format.is_message(entries)
        there &= (lengths >= MIN_RECORD_SIZE) & (lengths <= MAX_RECORD_SIZE)
        there &= log.covers(offsets, lengths)
        rows = np.flatnonzero(there)
        prints, has_all = _prints_at(log, offsets[rows], lengths[rows])
        yield prints, at + rows[has_all] + 1, is_due
        at += len(entries)


def _prints_at(log: CommitLog, offsets: I8, lengths: I4) -> tuple[Prints, npt.NDArray[np.bool_]]:
    if not len(offsets):
        return np.empty(0, np.uint64), np.empty(0, np.bool_)
    data, starts = log.read_entries(offsets, lengths, None)
    records = decode_records(data, starts, lengths)
    sound = (records.status == 0) & (records.physical_offset == offsets)
    prints, has_all = prints_of(records, np.flatnonzero(sound))
    sound[np.flatnonzero(sound)[~has_all]] = False
    return prints, sound


def _sources(part: LogBlock) -> I8:
    """Return the physical offsets of the messages of which a stretch of the log has copies."""
    marks = part.records.prepared_transaction_offset
    rows = np.flatnonzero(marks > 0)
    if not len(rows):
        return rows
    waits = [n for n, route in enumerate(part.block.routes) if route.topic == SCHEDULE_TOPIC]
    rows = rows[~np.isin(part.block.route_of[rows], waits)]
    properties = part.records.take(rows).properties
    named = find_properties(properties, (PROPERTY_REAL_TOPIC,))[PROPERTY_REAL_TOPIC]
    found: I8 = marks[rows[named.lengths >= 0]] - 1
    return found


def _levels(queues: ConsumeQueues, log: CommitLog, sources: I8) -> Iterator[tuple[int, int]]:
    """Yield a level and the offset behind the last of its messages among some."""
    sources = sources[log.covers(sources, np.full(len(sources), SYS_FLAG_AT, np.int32))]
    if not len(sources):
        return
    data, at = log.read_entries(sources, np.full(len(sources), SYS_FLAG_AT, np.int32), None)
    queue_id = values_at(data, np.dtype(">i4"), at + QUEUE_ID_AT).astype(np.int64)
    offset = values_at(data, np.dtype(">i8"), at + QUEUE_OFFSET_AT).astype(np.int64)
    own = values_at(data, np.dtype(">i8"), at + PHYSICAL_OFFSET_AT).astype(np.int64) == sources
    yield from _ends(queues, queue_id[own], offset[own], sources[own])


def _ends(
    queues: ConsumeQueues, queue_id: I8, offset: I8, sources: I8
) -> Iterator[tuple[int, int]]:
    """Yield a level and the offset behind the last of its messages among n.

    Args:
        queues: the queues, which say which messages they hold.
        queue_id, offset: n, where each is.
        sources: n, their physical offsets.
    """
    for number in np.unique(queue_id).tolist():
        rows = queue_id == number
        known = _known(queues, number, offset[rows], sources[rows])
        if len(known):
            yield number + 1, int(known.max()) + 1


def _known(queues: ConsumeQueues, queue_id: int, offsets: I8, sources: I8) -> npt.NDArray[np.int64]:
    """Return those offsets at which the queue holds the given messages."""
    end = queues.max_offset(SCHEDULE_TOPIC, queue_id)
    inside = (offsets >= queues.min_offset(SCHEDULE_TOPIC, queue_id)) & (offsets < end)
    offsets, sources = offsets[inside], sources[inside]
    if not len(offsets):
        return offsets
    first, last = int(offsets.min()), int(offsets.max())
    first = max(first, last - _MOST_AT_ONCE)
    entries = queues.read(SCHEDULE_TOPIC, queue_id, first, last - first + 1)
    near = (offsets >= first) & (offsets < first + len(entries))
    offsets, sources = offsets[near], sources[near]
    held = entries["physicalOffset"].astype(np.int64)[offsets - first]
    found: I8 = offsets[held == sources]
    return found
