"""Convert batches of CommitLog records between bytes and NumPy/Arrow.

    totalSize 4 | magicCode 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8
    sysFlag 4 | bornTimestamp 8 | bornHost 8 or 20 | storeTimestamp 8 | storeHost 8 or 20
    reconsumeTimes 4 | preparedTransactionOffset 8 | bodyLength 4, body | topicLength 1 or 2, topic
    propertiesLength 2, properties                                           (all big-endian)

See docs/format.md, "A CommitLog record" (upstream: CommitLog.DefaultAppendMessageCallback writes,
MessageDecoder.decode reads).

A client's message has the preparedTransactionOffset 0, and a broker writes none that is negative.
So in the first record of a Spark batch, this field is the physical offset at which the batch ends,
negated. Brokers and consumers ignore it there. A copy of the log needs it: the rest of the batch
may never arrive (docs/format.md, "A block that is not published yet").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    BLANK_SIZE,
    BORNHOST_V6_FLAG,
    MAGIC_BLANK,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import (
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    HOST_SIZE,
    HOST_V6_SIZE,
    MIN_RECORD_SIZE,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    STORE_HOST_AT,
    SYS_FLAG_LAST,
    V6_EXTRA,
)
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.spans import I4, I8, U1, Spans

__all__ = [
    "Records",
    "Walk",
    "batch_ends",
    "check_crcs",
    "crc_property_mismatch",
    "decode_records",
    "encode_blank",
    "states_place",
    "walk_records",
    "write_batch_end",
]

STATUS_TEXT: Final = {
    plain.SHORT: "the size of a record is too small, or extends past the end",
    plain.BAD_MAGIC: "no record begins here (unknown magic code)",
    plain.BAD_LENGTHS: "the lengths inside a record do not add up to its size",
    plain.BAD_BODY_CRC: "a body does not match its bodyCRC",
    plain.BAD_RECORD_CRC: "a record does not match its CRC property",
}


@dataclass(frozen=True)
class Records:
    """The fixed fields of n records in one buffer, a column each.

    Attributes:
        buffer: uint8, the bytes of the records.
        positions: n, where each record starts in the buffer.
        longs: (5, n) int64, see `plain.parse`.
        ints: (14, n) int32, see `plain.parse`.
        bodies: n spans, the bodies if they were separated from the rest of the records.
        crc_checked: whether the requested CRCs have been checked; `status` holds the result.
    """

    buffer: U1
    positions: I8
    longs: I8
    ints: I4
    bodies: Spans | None = None
    crc_checked: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return the records of some rows, in that order."""
        longs, ints = np.take(self.longs, rows, axis=1), np.take(self.ints, rows, axis=1)
        bodies = self.bodies.take(rows) if self.bodies is not None else None
        return Records(self.buffer, self.positions[rows], longs, ints, bodies, self.crc_checked)

    @property
    def queue_offset(self) -> I8:
        return self.longs[0]

    @property
    def physical_offset(self) -> I8:
        return self.longs[1]

    @property
    def born_timestamp(self) -> I8:
        return self.longs[2]

    @property
    def store_timestamp(self) -> I8:
        return self.longs[3]

    @property
    def prepared_transaction_offset(self) -> I8:
        return self.longs[4]

    @property
    def store_size(self) -> I4:
        return self.ints[0]

    @property
    def body_crc(self) -> I4:
        return self.ints[2]

    @property
    def queue_id(self) -> I4:
        return self.ints[3]

    @property
    def flag(self) -> I4:
        return self.ints[4]

    @property
    def sys_flag(self) -> I4:
        return self.ints[5]

    @property
    def reconsume_times(self) -> I4:
        return self.ints[6]

    @property
    def status(self) -> I4:
        """0 if the record is consistent, else a key of STATUS_TEXT."""
        return self.ints[13]

    @property
    def body(self) -> Spans:
        """The stored bytes of the bodies."""
        return self._spans(7) if self.bodies is None else self.bodies

    @property
    def topic(self) -> Spans:
        return self._spans(9)

    @property
    def properties(self) -> Spans:
        return self._spans(11)

    def _spans(self, field: int) -> Spans:
        return Spans(self.buffer, self.positions + self.ints[field], self.ints[field + 1])

    @property
    def born_host_v6(self) -> npt.NDArray[np.uint8]:
        return ((self.sys_flag & BORNHOST_V6_FLAG) != 0).astype(np.uint8)

    @property
    def store_host_v6(self) -> npt.NDArray[np.uint8]:
        return ((self.sys_flag & STOREHOST_V6_FLAG) != 0).astype(np.uint8)

    @property
    def born_host_at(self) -> I8:
        return self.positions + BORN_HOST_AT

    @property
    def store_host_at(self) -> I8:
        return self.positions + STORE_HOST_AT + V6_EXTRA * self.born_host_v6.astype(np.int64)

    def store_host(self, row: int) -> bytes:
        """Return the storeHost of a record as it is stored: address and port."""
        at = int(self.store_host_at[row])
        size = HOST_V6_SIZE if self.store_host_v6[row] else HOST_SIZE
        return self.buffer[at : at + size].tobytes()

    def body_crc_mismatch(self) -> npt.NDArray[np.bool_]:
        """Return which stored bodies do not match their bodyCRC."""
        found = self.body.crc32() & np.uint32(0x7FFFFFFF)
        return found.view(np.int32) != self.body_crc


def decode_records(buffer: U1, positions: I8, rooms: I4) -> Records:
    """Read the fixed fields of n records and check that each is consistent.

    Args:
        buffer: uint8.
        positions: n byte offsets into it.
        rooms: n, the maximum size of each record; a record that claims more is damaged.

    Returns:
        The records; `status` says which are sound. All fields of the others are 0.
    """
    n = len(positions)
    longs, ints = np.empty((5, n), np.int64), np.empty((14, n), np.int32)
    kernel.active.parse(buffer, positions, rooms, longs, ints)
    return Records(buffer, positions, longs, ints)


def check_crcs(records: Records, *, bodies: bool) -> Records:
    """Check CRCs of sound records; failures show in the status of the result.

    Args:
        bodies: check the bodies' CRCs, not only those of whole records that have one.
    """
    ints = records.ints.copy()
    status = ints[13]
    if bodies:
        status[(status == plain.OK) & records.body_crc_mismatch()] = plain.BAD_BODY_CRC
    status[(records.status == plain.OK) & crc_property_mismatch(records)] = plain.BAD_RECORD_CRC
    return replace(records, ints=ints, crc_checked=True)


def crc_property_mismatch(records: Records) -> npt.NDArray[np.bool_]:
    """Return which records fail the CRC of the whole record that 5.x can append.

    Records without that property never fail. See docs/format.md, "What 5.x does differently".
    """
    return plain.record_crc_differs(
        records.buffer,
        records.positions,
        records.store_size,
        records.properties.lengths,
        kernel.active.crc32_spans,
    )


@dataclass(frozen=True)
class Walk:
    """The result of a walk over the records in a buffer.

    Attributes:
        positions: n, where each record starts in the buffer.
        stop: one of plain.STOP_FULL (the limit was reached), STOP_MORE (the next unit begins in
            the buffer but does not end there), STOP_BLANK, STOP_BAD.
        at: byte at which the walk stopped.
    """

    positions: I8
    stop: int
    at: int


def walk_records(
    buffer: U1, start: int, end: int, base: int, lead: int = 0, limit: int = 1 << 16
) -> Walk:
    """Follow the records that fill `buffer[start:end]`, by magic, size and physical offset.

    Args:
        base: physical offset of the buffer's first byte.
        lead: bytes in front of each record: 0, or 48 (the entry header) in a DLedger log.
        limit: maximum number of records.
    """
    room = min(limit, (end - start) // MIN_RECORD_SIZE + 1)
    positions = np.empty(room, np.int64)
    found, stop, at = kernel.active.walk(buffer, start, end, base, lead, positions)
    return Walk(positions[:found], stop, at)


_MOST_TOPIC: Final = 255
_PLACE: Final = struct.Struct(">i4xq")  # queueId, flag, queueOffset


def states_place(data: bytes, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Return whether the bytes of one record state that it is a certain message of a queue.

    A quick look: whether the record is sound is left open, and of messages in light queues, and of
    those with a topicLength of 2 bytes, it says False (`dispatches.belongs_to`).
    """
    if len(data) < MIN_RECORD_SIZE or len(topic) > _MOST_TOPIC:
        return False
    if _PLACE.unpack_from(data, QUEUE_ID_AT) != (queue_id, queue_offset):
        return False
    flags = data[SYS_FLAG_LAST]
    wide = bool(flags & BORNHOST_V6_FLAG) + bool(flags & STOREHOST_V6_FLAG)
    at = BODY_LENGTH_AT + V6_EXTRA * wide
    at += 4 + max(int.from_bytes(data[at : at + 4], "big", signed=True), 0)
    return data[at : at + 1 + len(topic)] == bytes((len(topic),)) + topic


def encode_blank(size: int) -> bytes:
    """Return the blank record that closes a segment with `size` bytes left (at least 8)."""
    head = size.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True)
    return head + bytes(size - BLANK_SIZE)


def write_batch_end(data: U1, start: int, end: int) -> None:
    """Write into a record that a batch begins with it.

    Args:
        data: uint8, changed in place.
        start: where the record starts in it.
        end: physical offset at which the batch ends.
    """
    at = _prepared_offset_at(data, start)
    data[at : at + 8] = np.frombuffer((-end).to_bytes(8, "big", signed=True), np.uint8)


def stated_batch_end(data: U1, start: int) -> int:
    """Return the physical offset at which a batch ends, by the record that it begins with.

    It is 0 or less if no batch begins with that record.
    """
    at = _prepared_offset_at(data, start)
    return -int.from_bytes(data[at : at + 8].tobytes(), "big", signed=True)


def _prepared_offset_at(data: U1, start: int) -> int:
    flag = int(data[start + SYS_FLAG_LAST])
    wide = bool(flag & BORNHOST_V6_FLAG) + bool(flag & STOREHOST_V6_FLAG)
    return start + PREPARED_OFFSET_AT + wide * V6_EXTRA


def batch_ends(records: Records, physical_offset: I8) -> I8:
    """Return where the batches end that begin with records.

    Args:
        records: n records.
        physical_offset: n, where each starts in the log.

    Returns:
        n physical offsets; 0 for a record with which no batch begins. A record that names an end
        before its own begins none.
    """
    ends = -records.prepared_transaction_offset
    return np.where(ends >= physical_offset + records.store_size, ends, 0)
