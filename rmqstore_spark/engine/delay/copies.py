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

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.engine.recovery.redispatch import LogBlock
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
)
from rmqstore_spark.layout.index.hashing import hash_spans
from rmqstore_spark.layout.record.addressee import addressees, retarget
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, U1, array_texts, text_pool

_NAMES = (PROPERTY_UNIQ_KEY, PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
Prints: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Copies:
    """Messages to deliver.

    Attributes:
        data: uint8, their records, unstamped.
        count: how many.
        rows: which of the records that waited they are copies of.
        fault: why the first record without a copy has none; empty if all have one.
    """

    data: U1
    count: int
    rows: I8
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
        return Copies(np.empty(0, np.uint8), 0, rows, fault)
    made = retarget(
        records,
        topics,
        queue_ids,
        properties,
        store_host_v6=store_host_v6,
        prepared_offset=offsets[rows] + 1,
    )
    return Copies(array_texts(made)[1].copy(), len(rows), rows, fault)


class BrokersCopies:
    """The copies of delayed messages that a broker wrote to a part of the log.

    It takes 16 bytes of memory for each.
    """

    def __init__(self) -> None:
        self._prints: list[Prints] = []
        self._places: list[I8] = []

    def note(self, part: LogBlock) -> None:
        """Take note of the copies in a stretch of the log."""
        routes, records = part.block.routes, part.records
        waits = [n for n, route in enumerate(routes) if route.topic == SCHEDULE_TOPIC]
        others = ~np.isin(part.block.route_of, waits) & (records.prepared_transaction_offset == 0)
        rows = np.flatnonzero(others)
        prints, has_all = prints_of(records, rows)
        self._prints.append(prints)
        self._places.append(part.physical_offset[rows[has_all]])

    def begin_match(self, start: int) -> Unmatched:
        """Return the copies from a physical offset on, to find what they are copies of."""
        prints = np.concatenate([np.empty(0, np.uint64), *self._prints])
        places = np.concatenate([np.empty(0, np.int64), *self._places])
        return Unmatched(prints[places >= start])


class Unmatched:
    """Copies of which it is not known yet what they are copies of.

    A copy is that of one message: of messages that are the same, as many were delivered as there
    are copies, the first ones.

    Args:
        prints: of the copies.
    """

    def __init__(self, prints: Prints) -> None:
        self._prints, self._left = np.unique(prints, return_counts=True)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._left.any())

    def match(self, prints: Prints) -> npt.NDArray[np.bool_]:
        """Return which messages have a copy. Each is asked for once, in the order of delivery."""
        found = np.zeros(len(prints), np.bool_)
        if not len(self._prints):
            return found
        at = np.searchsorted(self._prints, prints).clip(max=len(self._prints) - 1)
        rows = np.flatnonzero(self._prints[at] == prints)
        rows = rows[np.argsort(at[rows], kind="stable")]
        at = at[rows]
        rank = np.arange(len(at)) - np.searchsorted(at, at)  # among those that are the same
        found[rows] = rank < self._left[at]
        np.subtract.at(self._left, at[found[rows]], 1)
        return found


def prints_of(records: Records, rows: I8) -> tuple[Prints, npt.NDArray[np.bool_]]:
    """Return what is the same of a delayed message and its copy, of rows that have all of it.

    Returns:
        A number for each of them, and which of the rows these are.
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
