"""Makes the messages to deliver from the messages that waited.

A copy has the topic and the queue that REAL_TOPIC and REAL_QID name, and keeps everything else,
these and DELAY included, as a broker's copy does. Its preparedTransactionOffset, which a broker
leaves 0, is the physical offset of the message that waited, plus 1: `recall` finds by it what was
delivered.
(Upstream: ScheduleMessageService.messageTimeup.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.layout.record.addressee import addressees, retarget
from rmqstore_spark.layout.record.format import check_crcs, decode_records
from rmqstore_spark.layout.spans import I4, I8, U1, array_texts, text_pool


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
