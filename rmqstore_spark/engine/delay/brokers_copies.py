"""Finds the delayed messages that a broker delivered, by its copies in the log.

Unlike this project's (`copies`), a broker's copy does not name the message that waited. It has the
same UNIQ_KEY, DELAY, REAL_TOPIC and REAL_QID, and the same body and time of birth. So messages that
waited and copies are compared by these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.recovery.redispatch import LogBlock
from rmqstore_spark.layout.constants import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
)
from rmqstore_spark.layout.index.hashing import hash_spans
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I8

_NAMES = (PROPERTY_UNIQ_KEY, PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

_Prints = npt.NDArray[np.uint64]


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
