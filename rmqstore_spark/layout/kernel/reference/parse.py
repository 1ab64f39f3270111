"""Read and check the fields of records, and find the messages of a batch: part of `plain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.buffers import values_at, windows
from rmqstore_spark.layout.constants import BORNHOST_V6_FLAG, STOREHOST_V6_FLAG
from rmqstore_spark.layout.fields import (
    BODY_CRC_AT,
    BODY_LENGTH_AT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    HEAD_SIZE,
    MAGIC_AT,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    V6_EXTRA,
)
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1, crc32_spans, spans_equal

MAGIC = {0xDAA320A7: 1, 0xDAA320AB: 2}  # -> bytes of the topic's length

OK, SHORT, BAD_MAGIC, BAD_LENGTHS, BAD_BODY_CRC, BAD_RECORD_CRC = range(6)

_TRAILER = 20  # "__CRC32#", 0x01, ten digits, least significant first, 0x02
_TRAILER_HEAD = np.frombuffer(b"__CRC32#\x01", np.uint8)


def field_at(buffer: U1, at: I8, width: int, kind: str) -> npt.NDArray[Any]:
    """Return the field of `width` bytes at each position in a buffer, as type `kind`."""
    if len(buffer) < width or not len(at):
        return np.zeros(len(at), kind)
    return values_at(buffer, np.dtype(kind), at)


def _u4(buffer: U1, at: I8) -> npt.NDArray[np.int64]:
    return field_at(buffer, at, 4, ">u4").astype(np.int64)


def parse(buffer: U1, positions: I8, rooms: I4, longs: I8, ints: I4) -> None:
    """Read the fixed fields of records and find their body, topic and properties.

    Args:
        rooms: maximum bytes of each record, from its position on.
        longs: (5, n) out: queueOffset, physicalOffset, bornTimestamp, storeTimestamp,
            preparedTransactionOffset.
        ints: (14, n) out: storeSize, magic, bodyCRC, queueId, flag, sysFlag, reconsumeTimes, then
            the offset (from the record's start) and the length of body, topic and properties, and
            the status. If the status is not OK, all other fields are 0.
    """
    ints[:] = 0
    longs[:] = 0
    fits = (positions >= 0) & (rooms >= MIN_RECORD_SIZE) & (positions + rooms <= len(buffer))
    ints[13] = np.where(fits, OK, SHORT)
    rows = np.flatnonzero(fits)
    at = positions[rows]
    total = field_at(buffer, at, 4, ">i4").astype(np.int64)
    magic = _u4(buffer, at + MAGIC_AT)
    sys_flag = field_at(buffer, at + SYS_FLAG_AT, 4, ">i4").astype(np.int64)
    width = np.where(magic == 0xDAA320AB, 2, 1)
    status = np.where((magic == 0xDAA320A7) | (magic == 0xDAA320AB), OK, BAD_MAGIC)
    status[(status == OK) & ((total < MIN_RECORD_SIZE) | (total > rooms[rows]))] = SHORT
    born_more = np.where(sys_flag & BORNHOST_V6_FLAG, V6_EXTRA, 0)
    more = born_more + np.where(sys_flag & STOREHOST_V6_FLAG, V6_EXTRA, 0)
    body_at = HEAD_SIZE + more
    status[(status == OK) & (body_at + width + 2 > total)] = BAD_LENGTHS

    good = status == OK
    length_at = np.where(good, at + BODY_LENGTH_AT + more, at)
    body = field_at(buffer, length_at, 4, ">i4").astype(np.int64)
    status[good & ((body < 0) | (body > total - body_at - width - 2))] = BAD_LENGTHS
    good = status == OK
    topic_field = np.where(good, at + body_at + body, at)
    topic = buffer[topic_field].astype(np.int64)
    topic = np.where(width == 2, topic << 8 | buffer[topic_field + 1], topic)
    topic_at = body_at + body + width
    limit = np.where(width == 2, 32767, 127)
    status[good & ((topic > limit) | (topic > total - topic_at - 2))] = BAD_LENGTHS
    good = status == OK
    length = field_at(buffer, np.where(good, at + topic_at + topic, at), 2, ">u2").astype(np.int64)
    properties_at = topic_at + topic + 2
    status[good & ((length > 32767) | (length != total - properties_at))] = BAD_LENGTHS

    ints[13, rows] = status
    good = status == OK
    rows, at = rows[good], at[good]
    for field, offset in ((2, BODY_CRC_AT), (3, QUEUE_ID_AT), (4, FLAG_AT)):
        ints[field, rows] = field_at(buffer, at + offset, 4, ">i4")
    for field, offset in (
        (0, QUEUE_OFFSET_AT), (1, PHYSICAL_OFFSET_AT), (2, BORN_TIMESTAMP_AT),
    ):  # fmt: skip
        longs[field, rows] = field_at(buffer, at + offset, 8, ">i8")
    ints[0, rows] = total[good]
    ints[1, rows] = magic[good].astype(np.uint32).view(np.int32)
    ints[5, rows] = sys_flag[good]
    ints[6, rows] = field_at(buffer, at + RECONSUME_TIMES_AT + more[good], 4, ">i4")
    longs[3, rows] = field_at(buffer, at + STORE_TIMESTAMP_AT + born_more[good], 8, ">i8")
    longs[4, rows] = field_at(buffer, at + PREPARED_OFFSET_AT + more[good], 8, ">i8")
    spans = (body_at, body, topic_at, topic, properties_at, length)
    for field, values in enumerate(spans, start=7):
        ints[field, rows] = values[good]


def record_crc_differs(
    buffer: U1,
    positions: I8,
    sizes: I4,
    lengths: I4,
    crc32: Callable[[U1, I8, I4, npt.NDArray[np.uint32]], object] | None = None,
) -> npt.NDArray[np.bool_]:
    """Return which records fail the CRC of the whole record that 5.x can append.

    Args:
        positions, sizes: n records.
        lengths: bytes of the properties of each.
        crc32: computes checksums, `crc32_spans` by default.
    """
    bad = np.zeros(len(positions), np.bool_)
    rows = np.flatnonzero(lengths >= _TRAILER)
    at = positions[rows] + sizes[rows] - _TRAILER
    # Check one byte first: hardly any store has the property at all.
    hit = buffer[at] == _TRAILER_HEAD[0]
    rows, at = rows[hit], at[hit]
    if not len(rows):
        return bad
    trailers = windows(buffer, at, _TRAILER)
    hit = (trailers[:, : len(_TRAILER_HEAD)] == _TRAILER_HEAD).all(axis=1)
    rows, trailers = rows[hit], trailers[hit]
    digits = trailers[:, len(_TRAILER_HEAD) : -1].astype(np.int64) - ord("0")
    found = np.empty(len(rows), np.uint32)
    (crc32 or crc32_spans)(buffer, positions[rows], sizes[rows] - _TRAILER, found)
    stated = (digits * 10 ** np.arange(10)).sum(axis=1)
    odd = ((digits < 0) | (digits > 9)).any(axis=1)
    bad[rows] = odd | (stated != (found & np.uint32(0x7FFFFFFF)))
    return bad


def as_claimed(
    buffer: U1,
    positions: I8,
    longs: I8,
    ints: I4,
    offsets: I8,
    sizes: I4,
    slots: I8,
    queue: I4,
    topics: U1,
    topic_starts: I8,
    topic_lengths: I4,
    queue_ids: I4,
) -> bool:
    """Return whether n records are sound, and are those that entries of k queues claim.

    Args:
        buffer, positions, longs, ints: the records, as `parse` or `absorb` returned them.
        offsets, sizes, slots: n physical offsets, sizes and queue offsets, each of which the
            record must state as well.
        queue: n numbers of queues.
        topics, topic_starts, topic_lengths, queue_ids: the topic and queueId of k queues.
    """
    if len(queue) and (queue.min() < 0 or queue.max() >= len(queue_ids)):
        raise ValueError("a span lies outside its buffer")
    if (ints[13] != OK).any():
        return False
    same = np.empty(len(positions), np.uint8)
    claimed = topic_starts[queue], topic_lengths[queue]
    spans_equal(buffer, positions + ints[9], ints[10], topics, *claimed, same)
    same &= (longs[1] == offsets) & (ints[0] == sizes) & (longs[0] == slots)
    same &= ints[3] == queue_ids[queue]
    return bool(same.all())


_BATCH_HEAD: Final = 20
_LEAST_MESSAGE: Final = 22


def split_batch(
    data: U1, body_at: I8, body_sizes: I4, properties_at: I8, properties_sizes: I4, flags: I4
) -> tuple[int, int]:
    """Find the messages of a batch, one after the other.

    Each has its size, a magic code, a CRC, its flag, and the length of its body, 4 bytes each; its
    body; the length of its properties, 2 bytes; and these (upstream: MessageDecoder.encodeMessage).

    Args:
        data: the body of the request.
        body_at, body_sizes, properties_at, properties_sizes, flags: out; as long as there may be
            messages.

    Returns:
        How many messages there are, and at which byte no message begins, or one too many; -1 if
        there is no such byte.
    """
    view, end, at = memoryview(data.data), len(data), 0
    for row in range(len(body_at)):
        if at == end:
            return row, -1
        if end - at < _LEAST_MESSAGE:
            return row, at
        size, flag, body = (
            int.from_bytes(view[at + place : at + place + 4], "big", signed=True)
            for place in (0, 12, 16)
        )
        if not _LEAST_MESSAGE <= size <= end - at or not 0 <= body <= size - _LEAST_MESSAGE:
            return row, at
        after = at + _BATCH_HEAD + body
        properties = int.from_bytes(view[after : after + 2], "big", signed=True)
        if properties != size - _LEAST_MESSAGE - body:
            return row, at
        body_at[row], body_sizes[row], flags[row] = at + _BATCH_HEAD, body, flag
        properties_at[row], properties_sizes[row] = after + 2, properties
        at += size
    return len(body_at), -1 if at == end else at
