"""Makes the messages to deliver from the messages that waited, and finds them in the log again.

A copy has the topic and the queue that REAL_TOPIC and REAL_QID name, and keeps everything else,
these and DELAY included, as a broker's copy does. Its preparedTransactionOffset, which a broker
leaves 0, is the physical offset of the message that waited, plus 1. So a process that was killed
has delivered what the log has copies of, whatever it could still write to
`config/delayOffset.json`.

A broker's copy does not name the message that waited. It has the same UNIQ_KEY, DELAY, REAL_TOPIC
and REAL_QID, and the same body and time of birth: messages that waited and copies are compared by
these. (Upstream: ScheduleMessageService.messageTimeup.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.recovery.redispatch import LogBlock, log_blocks
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
)
from rmqstore_spark.layout.fields import (
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
)
from rmqstore_spark.layout.index.hashing import hash_spans
from rmqstore_spark.layout.record.addressee import addressees, retarget
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, U1, array_texts, text_pool
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import load_log

_NAMES = (PROPERTY_UNIQ_KEY, PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_Prints = npt.NDArray[np.uint64]
_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Copies:
    """Messages to deliver.

    Attributes:
        data: uint8, their records, unstamped.
        count: how many.
        fault: why the first record without a copy has none; empty if all have one.
    """

    data: U1
    count: int
    fault: str


def copies_of(buffer: U1, positions: I8, sizes: I4, offsets: I8, *, store_host_v6: bool) -> Copies:
    """Return copies of n records that waited; none of a record that cannot be delivered.

    Args:
        buffer: uint8, holds the records.
        positions, sizes: n, where each is, and its bytes.
        offsets: n physical offsets.
        store_host_v6: whether the copies have room for an IPv6 storeHost.
    """
    records = check_crcs(decode_records(buffer, positions, sizes), bodies=True)
    sound = (records.status == 0) & (records.physical_offset == offsets)
    sound &= records.topic.equal(text_pool([SCHEDULE_TOPIC]).take(np.zeros(len(sound), np.int64)))
    rows = np.flatnonzero(sound)
    fault = "" if len(rows) == len(sound) else "its record is damaged, or none of a delayed message"
    records = records.take(rows)
    to = addressees(records, MOST_QUEUES)
    topics, queue_ids, properties = to.topics, to.queue_ids, to.properties
    if not to.known.all():
        fault = fault or "its REAL_TOPIC and REAL_QID do not name a queue"
        keep = np.flatnonzero(to.known)
        records, queue_ids, rows = records.take(keep), queue_ids[keep], rows[keep]
        topics, properties = topics.take(pa.array(keep)), properties.take(pa.array(keep))
    if not len(rows):
        return Copies(np.empty(0, np.uint8), 0, fault)
    made = retarget(
        records,
        topics,
        queue_ids,
        properties,
        store_host_v6=store_host_v6,
        prepared_offset=offsets[rows] + 1,
    )
    return Copies(array_texts(made)[1].copy(), len(rows), fault)


class BrokersCopies:
    """What a part of the log has of delayed messages and of a broker's copies of them.

    It takes 32 bytes of memory for each.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[_Prints, I8]] = []
        self._copies: list[_Prints] = []

    def note(self, part: LogBlock) -> None:
        """Take note of the records of a stretch of the log."""
        routes, records = part.block.routes, part.records
        waits = np.isin(
            part.block.route_of,
            [n for n, route in enumerate(routes) if route.topic == SCHEDULE_TOPIC],
        )
        prints, has_all = _prints(records, np.flatnonzero(waits))
        rows = np.flatnonzero(waits)[has_all]
        place = np.stack(
            [
                records.queue_id[rows].astype(np.int64),
                records.queue_offset[rows],
                records.physical_offset[rows],
            ]
        )
        self._waiting.append((prints, place))
        others = np.flatnonzero(~waits & (records.prepared_transaction_offset == 0))
        self._copies.append(_prints(records, others)[0])

    def delivered(self) -> I8:
        """Return queueId, queue offset and physical offset of the messages that have a copy.

        Returns:
            (3, n).
        """
        if not self._waiting:
            return np.empty((3, 0), np.int64)
        prints = np.concatenate([each for each, _ in self._waiting])
        places = np.concatenate([each for _, each in self._waiting], axis=1)
        found: I8 = places[:, np.isin(prints, np.concatenate(self._copies))]
        return found


def _prints(records: Records, rows: I8) -> tuple[_Prints, npt.NDArray[np.bool_]]:
    """Return what is the same of a delayed message and its copy, of rows that have all of it.

    Returns:
        A number for each of them, and which rows these are.
    """
    taken = records.take(rows)
    named = find_properties(taken.properties, _NAMES)
    has_all = np.ones(len(rows), np.bool_)
    for name in (PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID):
        has_all &= named[name].lengths >= 0
    kept = np.flatnonzero(has_all)
    taken = taken.take(kept)
    found = taken.born_timestamp.astype(np.uint64)
    numbers = [hash_spans(named[name].take(kept))[0] for name in _NAMES]
    numbers += [column.view(np.uint32) for column in (
        np.ascontiguousarray(taken.body_crc), np.ascontiguousarray(taken.reconsume_times),
        np.ascontiguousarray(taken.flag), np.ascontiguousarray(taken.body.lengths),
    )]  # fmt: skip
    for number in numbers:
        found = (found ^ number.astype(np.uint64)) * _ODD
        found ^= found >> _SHIFT
    return found, has_all


def delivered(
    store: str, queues: ConsumeQueues, start: int, end: int, *, by_brokers: bool
) -> Iterator[dict[int, int]]:
    """Walk over a part of the log; yield how far levels were delivered in each stretch of it.

    Args:
        store: the store directory.
        queues: its queues.
        start: physical offset at which a record begins, or the log.
        end: where the log ends.
        by_brokers: also find what brokers delivered, of the messages of this part.

    Yields:
        The offset behind the last message that was delivered, by level.

    Raises:
        RmqStoreError: the log cannot be read.
    """
    files = LocalFiles()
    try:
        log, _ = load_log(StoreDirectory(files, store))
        copies = BrokersCopies()
        for part in log_blocks(log, max(start, log.min_offset), end):
            if by_brokers:
                copies.note(part)
            yield dict(_levels(queues, log, _sources(part)))
        yield dict(_ends(queues, *copies.delivered()))
    finally:
        files.close()


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
