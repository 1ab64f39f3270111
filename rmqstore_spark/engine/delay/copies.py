"""Makes the messages to deliver from the messages that waited.

A copy has the topic and the queue that REAL_TOPIC and REAL_QID name, and keeps everything else,
these and DELAY included, as a broker's copy does. Its preparedTransactionOffset, which a broker
leaves 0, is the physical offset of the message that waited, plus 1: `recall` finds by it what was
delivered.
(Upstream: ScheduleMessageService.messageTimeup.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.layout.constants import (
    PROPERTY_CRC32,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    is_writable_topic,
)
from rmqstore_spark.layout.record.format import check_crcs, decode_records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.record.retarget import retarget
from rmqstore_spark.layout.spans import I4, I8, U1, Spans, array_texts, binary_array, text_pool

__all__ = ["Copies", "copies_of"]

_SEPARATOR: Final = b"\x02"
_CRC_LEAD: Final = f"{PROPERTY_CRC32}\x01".encode()


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
    found = find_properties(
        records.properties, (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID, PROPERTY_CRC32)
    )
    topics = binary_array(found[PROPERTY_REAL_TOPIC])
    queue_ids = _queue_ids(found[PROPERTY_REAL_QID])
    addressed = (queue_ids >= 0) & _are_topics(topics)
    if not addressed.all():
        fault = fault or "its REAL_TOPIC and REAL_QID do not name a queue"
        keep = np.flatnonzero(addressed)
        records, queue_ids, rows = records.take(keep), queue_ids[keep], rows[keep]
        topics = topics.take(pa.array(keep))
        found = {name: spans.take(keep) for name, spans in found.items()}
    if not len(rows):
        return Copies(np.empty(0, np.uint8), 0, fault)
    made = retarget(
        records,
        topics,
        queue_ids,
        _without_crc(binary_array(records.properties), found[PROPERTY_CRC32].lengths >= 0),
        store_host_v6=store_host_v6,
        prepared_offset=offsets[rows] + 1,
    )
    return Copies(array_texts(made)[1].copy(), len(rows), fault)


def _queue_ids(texts: Spans) -> I4:
    """Return the numbers of queues; -1 for what is none."""
    coded = binary_array(texts).dictionary_encode()
    numbers = [_queue_id(text) for text in coded.dictionary.to_pylist()]
    index = coded.indices.fill_null(len(numbers)).to_numpy()
    found: I4 = np.array([*numbers, -1], np.int32)[index]
    return found


def _queue_id(text: bytes) -> int:
    number = int(text) if text.isdigit() and len(text) <= 5 else -1
    return number if number < MOST_QUEUES else -1


def _are_topics(names: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    coded = names.dictionary_encode()
    good = [
        is_writable_topic(name.decode("utf-8", "replace")) for name in coded.dictionary.to_pylist()
    ]
    found: npt.NDArray[np.bool_] = np.array([*good, False], np.bool_)[
        coded.indices.fill_null(len(good)).to_numpy()
    ]
    return found


def _without_crc(properties: pa.BinaryArray, has_crc: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """Leave out the CRC of the whole record, which RocketMQ 5 can append: a copy has another."""
    if not has_crc.any():
        return properties
    texts = properties.to_pylist()
    for row in np.flatnonzero(has_crc).tolist():
        parts = [part for part in texts[row].split(_SEPARATOR) if not part.startswith(_CRC_LEAD)]
        texts[row] = _SEPARATOR.join(parts)
    return pa.array(texts, pa.binary())
