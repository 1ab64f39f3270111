"""Addresses records to other queues, and tells where those go that wait in one.

REAL_TOPIC and REAL_QID name the queue of a message that waits in another one. Delayed messages wait
under SCHEDULE_TOPIC_XXXX, half messages under RMQ_SYS_TRANS_HALF_TOPIC; all but topic, queueId and
properties stays as it is (upstream: CommitLog.asyncPutMessage,
ScheduleMessageService.messageTimeup,
TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.constants import (
    MAGIC_V1,
    PROPERTY_CRC32,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    STOREHOST_V6_FLAG,
    TRANSACTION_MASK,
    is_writable_topic,
)
from rmqstore_spark.layout.fields import (
    HOST_SIZE,
    HOST_V6_SIZE,
    MAGIC_AT,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    STORE_HOST_AT,
    SYS_FLAG_LAST,
)
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I4, I8, U1, Spans, array_texts, binary_array

SEPARATOR: Final = b"\x02"
_LEADS: Final = tuple(name.encode() + b"\x01" for name in (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID))
_CRC_LEAD: Final = f"{PROPERTY_CRC32}\x01".encode()


@dataclass(frozen=True)
class Addressees:
    """The queues for which n messages wait.

    Attributes:
        topics: n names.
        queue_ids: n.
        known: n, whether REAL_TOPIC and REAL_QID name a queue.
        properties: n, without the CRC of the whole record that RocketMQ 5 can append: a copy has
            another one.
    """

    topics: pa.BinaryArray
    queue_ids: I4
    known: npt.NDArray[np.bool_]
    properties: pa.BinaryArray


def addressees(records: Records, most_queues: int) -> Addressees:
    """Return the queues for which messages wait.

    Args:
        records: n sound records.
        most_queues: the most queues that a topic may have.
    """
    found = find_properties(
        records.properties, (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID, PROPERTY_CRC32)
    )
    topics = binary_array(found[PROPERTY_REAL_TOPIC])
    queue_ids = _queue_ids(found[PROPERTY_REAL_QID], most_queues)
    properties = _without_crc(binary_array(records.properties), found[PROPERTY_CRC32].lengths >= 0)
    return Addressees(topics, queue_ids, (queue_ids >= 0) & _are_topics(topics), properties)


def open_ended(records: Records) -> pa.BinaryArray:
    """Return the properties of records without a separator at their end."""
    spans = records.properties
    ends = spans.starts + np.maximum(spans.lengths - 1, 0)
    closed = (spans.lengths > 0) & (spans.buffer[ends] == SEPARATOR[0])
    return binary_array(
        Spans(spans.buffer, spans.starts, (spans.lengths - closed).astype(np.int32))
    )


def with_addressee(records: Records, properties: pa.BinaryArray) -> pa.BinaryArray:
    """Return properties with the topic and the queue of their records at the end.

    Args:
        records: n records.
        properties: n, without a separator at their end, and without REAL_TOPIC and REAL_QID.
    """
    real_qid = pa.array(records.queue_id).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(
            pc.if_else(pc.equal(pc.binary_length(properties), 0), None, properties),
            _LEADS[0],
            SEPARATOR,
            null_handling="skip",
        ),
        pc.binary_join_element_wise(binary_array(records.topic), _LEADS[1], SEPARATOR),
        real_qid,
        b"",
    )


def without_addressee(text: bytes) -> bytes:
    """Return properties without REAL_TOPIC and REAL_QID."""
    parts = text.split(SEPARATOR)
    return SEPARATOR.join(part for part in parts if part and not part.startswith(_LEADS))


def _queue_ids(texts: Spans, most_queues: int) -> I4:
    """Return the numbers of queues; -1 for what is none."""
    coded = binary_array(texts).dictionary_encode()
    numbers = [_queue_id(text, most_queues) for text in coded.dictionary.to_pylist()]
    index = coded.indices.fill_null(len(numbers)).to_numpy()
    found: I4 = np.array([*numbers, -1], np.int32)[index]
    return found


def _queue_id(text: bytes, most_queues: int) -> int:
    number = int(text) if text.isdigit() and len(text) <= 5 else -1
    return number if number < most_queues else -1


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
    if not has_crc.any():
        return properties
    texts = properties.to_pylist()
    for row in np.flatnonzero(has_crc).tolist():
        parts = [part for part in texts[row].split(SEPARATOR) if not part.startswith(_CRC_LEAD)]
        texts[row] = SEPARATOR.join(parts)
    return pa.array(texts, pa.binary())


def retarget(
    records: Records,
    topic: pa.BinaryArray,
    queue_id: I4,
    properties: pa.BinaryArray,
    *,
    store_host_v6: bool,
    prepared_offset: I8 | None = None,
    transaction_type: int | None = None,
) -> pa.BinaryArray:
    """Return copies of records for other queues, in the first version of the format.

    The fields that a store stamps are not set. A CRC of the whole record (RocketMQ 5) must not be
    among the properties.

    Args:
        records: n sound records.
        topic: n names of at most 127 bytes.
        queue_id: n.
        properties: n, of at most 32,767 bytes each.
        store_host_v6: whether the copies have room for an IPv6 storeHost.
        prepared_offset: n values of preparedTransactionOffset; by default those of the records.
        transaction_type: the transaction bits of all sysFlags; by default those of the records.

    Returns:
        n records.
    """
    n, width = len(records), HOST_V6_SIZE if store_host_v6 else HOST_SIZE
    start, host_at = records.positions, records.store_host_at
    after_host = host_at + np.where(records.store_host_v6, HOST_V6_SIZE, HOST_SIZE)
    body_end = start + records.ints[7] + records.ints[8]
    joined = pc.binary_join_element_wise(
        _piece(records.buffer, start, host_at),
        pa.scalar(bytes(width), pa.binary()),
        _piece(records.buffer, after_host, body_end),
        _numbers(pc.binary_length(topic).to_numpy().astype("u1")),
        topic,
        _numbers(pc.binary_length(properties).to_numpy().astype(">u2")),
        properties,
        pa.scalar(b"", pa.binary()),
    )
    offsets, shared = array_texts(joined)
    at, data = offsets[:-1].astype(np.int64), shared.copy()
    _put(data, at, np.diff(offsets).astype(">i4"))
    _put(data, at + MAGIC_AT, np.full(n, MAGIC_V1, ">i4"))
    _put(data, at + QUEUE_ID_AT, queue_id.astype(">i4"))
    flags = data[at + SYS_FLAG_LAST] & (0xFF ^ STOREHOST_V6_FLAG)
    if transaction_type is not None:
        flags = flags & (0xFF ^ TRANSACTION_MASK) | transaction_type
    data[at + SYS_FLAG_LAST] = flags | (STOREHOST_V6_FLAG if store_host_v6 else 0)
    if prepared_offset is not None:
        more = (host_at - start) - STORE_HOST_AT + width - HOST_SIZE
        _put(data, at + PREPARED_OFFSET_AT + more, prepared_offset.astype(">i8"))
    return pa.Array.from_buffers(
        pa.binary(), n, [None, pa.py_buffer(offsets.copy()), pa.py_buffer(data)]
    )


def _piece(buffer: U1, begin: I8, end: I8) -> pa.BinaryArray:
    return binary_array(Spans(buffer, begin, (end - begin).astype(np.int32)))


def _numbers(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Return the bytes of n numbers, as n binary values."""
    fixed = pa.binary(values.dtype.itemsize)
    array = pa.Array.from_buffers(fixed, len(values), [None, pa.py_buffer(values.tobytes())])
    return array.cast(pa.binary())


def _put(data: U1, at: I8, values: npt.NDArray[np.generic]) -> None:
    width = values.dtype.itemsize
    data[at[:, None] + np.arange(width)] = values.view(np.uint8).reshape(len(values), width)
