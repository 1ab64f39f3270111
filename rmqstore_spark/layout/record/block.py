"""Blocks: encoded records, one after the other, on their way into a store.

The producer of the records leaves queueOffset, physicalOffset, storeTimestamp and storeHost zero.
The store trusts nothing in a block. `check_block` checks all of it once, and finds the records and
their queues. `stamp_records` fills in the four fields. The same `Block` then yields the entries of
the queues and the keys of the index. `read_block` builds it from records that are in the log.

See docs/format.md, "A CommitLog record" (upstream: DefaultMessageStore.checkMessage,
CommitLog.DefaultAppendMessageCallback, CommitLog.checkMessageAndReturnSize).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import BlockError, CorruptRecordError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.compression import MAX_UNPACKED, compression_type, unpacked_size
from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    COMPRESSED_FLAG,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    MAX_PROPERTIES_LENGTH,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import (
    BODY_LENGTH_AT,
    HEAD_SIZE,
    MIN_RECORD_SIZE,
    SYS_FLAG_AT,
    SYS_FLAG_LAST,
    V6_EXTRA,
)
from rmqstore_spark.layout.kernel.reference import block as plain_block
from rmqstore_spark.layout.kernel.reference import parse as status_of
from rmqstore_spark.layout.kernel.reference.parse import field_at
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import I4, I8, U1, Spans

__all__ = [
    "MAX_BLOCK_UNPACKED",
    "MAX_ROWS",
    "Block",
    "BlockError",
    "Route",
    "add_up",
    "body_sizes",
    "check_block",
    "check_bodies",
    "check_properties",
    "digest_text",
    "index_hashes",
    "not_packed",
    "number_rows",
    "read_block",
    "stamp_records",
]

MAX_ROWS: Final = 1 << 16
"""Maximum records of a block, unless the caller allows another number."""

_BORN_V6_BIT, _STORE_V6_BIT = 4, 5
_MOST_BYTES: Final = 2**31 - 1
_MOST_KEYS: Final = 1 << 15
"""An upper limit for one record: the shortest key takes a letter and a space."""
_SEED: Final = secrets.randbits(63)
"""Random, so that nobody can craft names that all collide in the kernel's hash table."""

_CAUSES: Final = {
    status_of.SHORT: "its size is too small, or extends past the end of the block",
    status_of.BAD_MAGIC: "it does not begin like a record (unknown magic code)",
    status_of.BAD_LENGTHS: "its lengths do not add up to its size, or its topic is too long",
    status_of.BAD_BODY_CRC: "its body does not match its bodyCRC",
    plain_block.MANY_ROWS: "the block holds more records than are allowed",
    plain_block.BIG_BODY: "its body is larger than maxMessageSize",
    plain_block.BAD_TOPIC: "its topic is empty or not UTF-8",
    plain_block.BAD_QUEUE_ID: "its queueId is negative",
    plain_block.BAD_SYS_FLAG: "its sysFlag has bits that are not allowed",
    plain_block.BAD_STORE_HOST: "its storeHost has another length than the store's address",
    plain_block.CRC_PROPERTY: "it has a CRC property, which would be wrong once it is stamped",
    plain_block.LIGHT_QUEUES: "it names light queues (INNER_MULTI_DISPATCH)",
    plain_block.BAD_RECONSUME_TIMES: "its reconsumeTimes is negative",
    plain_block.BAD_PREPARED_OFFSET: "its preparedTransactionOffset is not zero; only a "
    "broker sets it",
    plain_block.BAD_BORN_PORT: "the port of its bornHost is over 65535",
}


class Route(NamedTuple):
    """A queue to which records belong."""

    topic: str
    queue_id: int


@dataclass(slots=True)  # frozen, it would cost as much as a system call
class Block:
    """n checked records, one after the other. It is not changed.

    Attributes:
        data: uint8, their bytes.
        starts: n byte offsets into it.
        sizes: n bytes of each.
        routes: the queues, in the order of their first records.
        route_of: n, the number of each record's route.
        tags_code: n, the tagsCode of each record's entry.
        queued: n bools: False for a prepared or rolled-back record, which has no entry in its
            queue, and queueOffset 0.
        compressed: number of compressed bodies.
        delayed: number of records with a property DELAY.
        sums: two sums of hashes of what the records say, if they were asked for (`digest`).
        unit_ends: ascending, the row after the last one of each unit, whose records lie in one
            segment; None: each record is a unit.
        hashes: the keys of the records as `index_hashes` returns them, if they are known already.
    """

    data: U1
    starts: I8
    sizes: I4
    routes: tuple[Route, ...]
    route_of: I4
    tags_code: I8
    queued: npt.NDArray[np.bool_]
    compressed: int = 0
    delayed: int = 0
    sums: tuple[int, int] = (0, 0)
    unit_ends: I8 | None = None
    hashes: tuple[I4, I4] | None = None

    def __len__(self) -> int:
        return len(self.starts)


def check_block(
    data: U1,
    *,
    max_body: int,
    store_host_v6: bool,
    allowed_sys_flag: int,
    max_rows: int = MAX_ROWS,
    digested: bool = False,
) -> Block:
    """Check records that a client wants to store; the caller checks the topic names.

    Args:
        data: uint8, contiguous: the block.
        max_body: bytes of a stored body, `maxMessageSize`.
        store_host_v6: whether the store's address is IPv6.
        allowed_sys_flag: the bits that a sysFlag may have, in addition to those for the hosts'
            width.
        max_rows: maximum records of the block.
        digested: whether to add up the hashes of the records.

    Raises:
        BlockError: the records do not fill the block exactly, or one is invalid. A valid record
            has magic V1, consistent lengths, a body of at most max_body bytes that matches its
            bodyCRC, a topic of 1 to 127 bytes of UTF-8, a queueId of at least 0, properties of at
            most 32,767 bytes without `__CRC32#`, allowed sysFlag bits, and room for the store's
            host. It has no field that only a broker writes or that `verify` would report as
            damage: no light queues, no negative reconsumeTimes, no preparedTransactionOffset, and
            no port of bornHost over 65535. (A client that could name light queues could put records
            into any queue, because every dispatch from the log follows them.) Compressed bodies are
            checked by `check_bodies`.
    """
    rules = plain_block.RULE_CLIENT | plain_block.RULE_PRODUCER | plain_block.RULE_BODY_CRC
    rules |= plain_block.RULE_DIGEST if digested else 0
    return _split(data, rules, max_body, int(store_host_v6), allowed_sys_flag, max_rows)


def read_block(data: U1, *, max_rows: int = MAX_ROWS) -> Block:
    """Parse records of a log, without the checks for records of a client.

    Args:
        data: uint8, contiguous: whole records that a walk has found one after the other.
        max_rows: maximum records of the block.

    Raises:
        BlockError: the bytes are not records.
    """
    return _split(data, 0, _MOST_BYTES, plain_block.ANY_STORE_HOST, 0, max_rows)


def _split(
    data: U1, rules: int, max_body: int, store_host_v6: int, allowed_sys_flag: int, max_rows: int
) -> Block:
    if data.nbytes > _MOST_BYTES:
        raise BlockError(
            0, 0, PutStatus.MESSAGE_ILLEGAL, f"a block of {data.nbytes} bytes is too large"
        )
    room = min(max_rows, len(data) // MIN_RECORD_SIZE + 1)
    starts, sizes = np.empty(room, np.int64), np.empty(room, np.int32)
    route_of, tags_code = np.empty(room, np.int32), np.empty(room, np.int64)
    queued, found = np.empty(room, np.uint8), np.empty((room, 3), np.int64)
    table = np.empty(1 << (2 * room).bit_length(), np.int32)
    sums = np.empty(2, np.uint64)
    n, count, status, at, compressed, delayed = kernel.active.check_block(
        data, rules, max_body, store_host_v6, allowed_sys_flag, _SEED,
        starts, sizes, route_of, tags_code, queued, found, table, sums,
    )  # fmt: skip
    if status != status_of.OK:
        if status == status_of.BAD_LENGTHS and _properties_exceed(data[at:]):
            limit = f"its properties have more than {MAX_PROPERTIES_LENGTH} bytes"
            raise BlockError(n, at, PutStatus.PROPERTIES_SIZE_EXCEEDED, limit)
        raise BlockError(n, at, PutStatus.MESSAGE_ILLEGAL, _CAUSES[status])
    routes = _routes(data.data, found[:count].tolist())
    flags = queued[:n].view(np.bool_)
    return Block(
        data, starts[:n], sizes[:n], routes, route_of[:n], tags_code[:n], flags, compressed,
        delayed, (int(sums[0]), int(sums[1])),
    )  # fmt: skip


def _routes(data: memoryview, found: list[list[int]]) -> tuple[Route, ...]:
    """Build the routes from the kernel's table: each topic's offset and length, and the queueId."""
    names: dict[bytes, str] = {}  # one str per topic, because a str caches its hash
    routes = []
    for at, length, queue_id in found:
        raw = bytes(data[at : at + length])
        name = names.get(raw)
        if name is None:
            name = names[raw] = raw.decode("utf-8", "replace")
        routes.append(Route(name, queue_id))
    return tuple(routes)


def _properties_exceed(record: U1) -> bool:
    """Return whether a record's lengths add up, but its properties exceed the limit."""

    def number(at: int, width: int) -> int:
        return int.from_bytes(record[at : at + width].tobytes(), "big", signed=width > 2)

    total, sys_flag = number(0, 4), number(SYS_FLAG_AT, 4)
    more = V6_EXTRA * (bool(sys_flag & BORNHOST_V6_FLAG) + bool(sys_flag & STOREHOST_V6_FLAG))
    topic_at = HEAD_SIZE + more + max(number(BODY_LENGTH_AT + more, 4), 0)
    at = topic_at + 1 + number(topic_at, 1)
    length = number(at, 2)
    return length > MAX_PROPERTIES_LENGTH and at + 2 + length == total


def body_sizes(block: Block) -> I4:
    """Return the bytes of each record's body, as it is stored."""
    flags, starts = block.data[block.starts + SYS_FLAG_LAST].astype(np.int64), block.starts
    wide = (flags >> _BORN_V6_BIT & 1) + (flags >> _STORE_V6_BIT & 1)
    at = starts + BODY_LENGTH_AT + V6_EXTRA * wide
    return values_at(block.data, np.dtype(">i4"), at).astype(np.int32)


def check_properties(block: Block) -> None:
    """Check that no properties hold a zero byte.

    Raises:
        BlockError: those of a record do.
    """
    found = decode_records(block.data, block.starts, block.sizes).properties.with_zeros()
    if len(found):
        row = int(found[0])
        raise BlockError(
            row, int(block.starts[row]), PutStatus.MESSAGE_ILLEGAL,
            "its properties hold a zero byte, which a member of a DLedger group does not take",
        )  # fmt: skip


def number_rows(route_of: I4, queued: npt.NDArray[np.bool_], next_offsets: I8) -> I8:
    """Give each row the next offset of its queue.

    Args:
        route_of, queued: n, the fields of a block.
        next_offsets: the next offset of each route's queue; advanced in place.

    Returns:
        n queueOffsets; 0 for a row that is not queued.
    """
    queue_offset = np.empty(len(route_of), np.int64)
    kernel.active.number_rows(route_of, queued.view(np.uint8), next_offsets, queue_offset)
    return queue_offset


def stamp_records(
    data: U1,
    starts: I8,
    queue_offset: I8,
    physical_offset: I8,
    store_timestamp: int,
    store_host: bytes,
) -> None:
    """Fill in the fields that only the store knows.

    Args:
        data: a checked block's bytes, changed in place.
        starts, queue_offset, physical_offset: n, the values of its records.
        store_timestamp: storeTimestamp of all records, milliseconds.
        store_host: address and 4-byte port: 8 bytes, or 20 for IPv6.

    Raises:
        ValueError: a record is not in `data`, or has room for the other kind of host.
    """
    kernel.active.stamp_records(
        data, starts, queue_offset, physical_offset, store_timestamp, store_host
    )


def index_hashes(data: U1, starts: I8, sizes: I4) -> tuple[I4, I4]:
    """Return the index keys of records: UNIQ_KEY, then each of KEYS; nothing if rolled back.

    Args:
        data: uint8, a checked block's bytes.
        starts, sizes: n, offsets and sizes of its records.

    Returns:
        The hash of each key (`hashing.index_key_hash`), and the row of its record, ascending.

    Raises:
        ValueError: one of the positions does not hold a record.
    """
    parts = []
    done, room = 0, max(2 * len(starts), _MOST_KEYS)
    while True:
        key_hash, rows = np.empty(room, np.int32), np.empty(room, np.int32)
        done, count = kernel.active.index_hashes(data, starts, sizes, done, key_hash, rows)
        parts.append((key_hash[:count], rows[:count]))
        if done == len(starts):
            break
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


MAX_BLOCK_UNPACKED: Final = 4 * MAX_UNPACKED
"""Maximum bytes of all decompressed bodies of a block together."""

_HEAD: Final = 4
_LZ4_MAGIC: Final = 0x04224D18
_ZSTD_MAGIC: Final = 0x28B52FFD


def not_packed(bodies: Spans, kind: I4) -> npt.NDArray[np.bool_]:
    """Return which bodies do not begin like a body of their compression type.

    Args:
        bodies: n, as they are stored.
        kind: n, the type of each; see `compression.compression_type`.
    """
    wrong = bodies.lengths < _HEAD
    first = field_at(bodies.buffer, np.where(wrong, 0, bodies.starts), _HEAD, ">u4")
    zlib = (first >> 24 & 0x0F == 8) & ((first >> 16) % 31 == 0)
    begins = np.select(
        [kind == COMPRESSION_LZ4, kind == COMPRESSION_ZSTD],
        [first == _LZ4_MAGIC, first == _ZSTD_MAGIC],
        zlib,
    )
    return wrong | ~begins


def check_bodies(block: Block) -> None:
    """Check that readers can decompress the compressed bodies of a checked block.

    Each body is decompressed piece by piece, and the pieces are dropped. This takes little memory,
    and time in proportion to the output, which is limited to `MAX_BLOCK_UNPACKED`.

    Raises:
        BlockError: a body is not compressed as its sysFlag says, is damaged, or decompresses to
            more than `MAX_UNPACKED` bytes; or all of them exceed `MAX_BLOCK_UNPACKED`.
    """
    flags = field_at(block.data, block.starts + SYS_FLAG_AT, 4, ">i4").astype(np.int32)
    rows = np.flatnonzero(flags & COMPRESSED_FLAG)
    starts, flags = block.starts[rows], flags[rows]
    bodies = decode_records(block.data, starts, block.sizes[rows]).body
    kinds = compression_type(flags)
    plain = not_packed(bodies, kinds)
    total = 0
    for number, row in enumerate(rows.tolist()):
        cause = ""
        if kinds[number] > COMPRESSION_ZLIB:
            cause = f"its sysFlag has the unknown compression type {kinds[number]}"
        elif plain[number]:
            cause = "its sysFlag says that its body is compressed, but it is not"
        else:
            begin = int(bodies.starts[number])
            stored = block.data[begin : begin + int(bodies.lengths[number])]
            try:
                total += unpacked_size(stored, int(flags[number]), MAX_UNPACKED)
            except CorruptRecordError as error:
                cause = f"readers could not decompress it: {error.cause}"
        if total > MAX_BLOCK_UNPACKED:
            cause = (
                "with it, the bodies of the block decompress to more than "
                f"{MAX_BLOCK_UNPACKED} bytes: send fewer messages at a time"
            )
        if cause:
            raise BlockError(row, int(starts[number]), PutStatus.MESSAGE_ILLEGAL, cause)


_MASK: Final = (1 << 64) - 1


def add_up(sums: tuple[int, int], block: Block) -> tuple[int, int]:
    """Add the records of a digested block (`check_block`) to two sums, which begin as (0, 0).

    What counts of a record comes from its row: the stored body, the topic, the properties in any
    order, the flag, reconsumeTimes, and whether the body is compressed. What differs when the same
    row is written again does not count: UNIQ_KEY, queue, bornTimestamp, both hosts, and what the
    store stamps.
    """
    return (sums[0] + block.sums[0]) & _MASK, (sums[1] + block.sums[1]) & _MASK


def digest_text(sums: tuple[int, int]) -> str:
    """Return two sums as a digest."""
    return f"{sums[0]:016x}{sums[1]:016x}"
