"""Address records to other queues. All but topic, queueId and properties stays as it is.

Delayed messages need this twice: when they are stored under SCHEDULE_TOPIC_XXXX, and when they are
delivered (upstream: CommitLog.asyncPutMessage, ScheduleMessageService.messageTimeup). So do
transactional ones (TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.constants import MAGIC_V1, STOREHOST_V6_FLAG, TRANSACTION_MASK
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
from rmqstore_spark.layout.spans import I4, I8, U1, Spans, array_texts, binary_array


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
