"""The loops over blocks of records to be stored, in NumPy and Arrow: part of `plain`.

Each has a compiled counterpart in `c/block.h` or `c/dispatch.h`; the tests compare the two.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout.buffers import windows
from rmqstore_spark.layout.constants import BORNHOST_V6_FLAG, STOREHOST_V6_FLAG
from rmqstore_spark.layout.fields import (
    BORN_HOST_AT,
    HOST_SIZE,
    HOST_V6_SIZE,
    MIN_RECORD_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    V6_EXTRA,
)
from rmqstore_spark.layout.kernel.reference.entries import ENTRY_DTYPE
from rmqstore_spark.layout.kernel.reference.hashing import U8, digest, hash_texts, key_hashes
from rmqstore_spark.layout.kernel.reference.parse import (
    BAD_BODY_CRC,
    BAD_MAGIC,
    OK,
    SHORT,
    field_at,
    parse,
)
from rmqstore_spark.layout.kernel.reference.spans import (
    I4,
    I8,
    U1,
    crc32_spans,
    find_properties,
    gather,
    split_spaces,
)

RULE_BODY_CRC, RULE_CLIENT, RULE_PRODUCER, RULE_DIGEST = 1, 2, 4, 8
ANY_STORE_HOST = -1
(
    MANY_ROWS, BIG_BODY, BAD_TOPIC, BAD_QUEUE_ID, BAD_SYS_FLAG, BAD_STORE_HOST, CRC_PROPERTY,
    LIGHT_QUEUES, BAD_RECONSUME_TIMES, BAD_PREPARED_OFFSET, BAD_BORN_PORT,
) = range(16, 27)  # fmt: skip

_V1: Final = 0xDAA320A7
_V2: Final = 0xDAA320AB
_TRANSACTION, _ROLLBACK = 0xC, 0xC
_COMPRESSED = 0x1
_MOST_PORT = 0xFFFF
_HEAD: Final = struct.Struct(">iI")
_TRAILER: Final = 20  # "__CRC32#", 0x01, ten digits, 0x02
_TRAILER_HEAD: Final = np.frombuffer(b"__CRC32#\x01", np.uint8)


def check_block(
    data: U1,
    rules: int,
    max_body: int,
    store_host_v6: int,
    allowed_sys_flag: int,
    seed: int,  # noqa: ARG001 - for the compiled kernel's hash table
    starts: I8,
    sizes: I4,
    route_of: I4,
    tags_code: I8,
    queued: U1,
    routes: I8,
    table: I4,  # noqa: ARG001 - for the compiled kernel
    sums: U8,
) -> tuple[int, int, int, int, int, int]:
    """Find the records of a block, check each, and number their queues.

    Args:
        rules: RULE_CLIENT: magic V1, a topic of valid UTF-8, a queueId, allowed sysFlag bits, and
            no property that stamping would invalidate. RULE_PRODUCER: no field that only a broker
            writes, and no invalid one (light queues, negative reconsumeTimes, a
            preparedTransactionOffset, a port over 65535). RULE_BODY_CRC: the CRC of each body.
            RULE_DIGEST asks for `sums`, and checks nothing.
        max_body: maximum bytes of a body.
        store_host_v6: 0 or 1, the value required of each sysFlag, or ANY_STORE_HOST.
        allowed_sys_flag: the bits that a sysFlag may have, in addition to those of its hosts.
        seed: any number.
        starts, sizes, tags_code, queued: n out, see `block.Block`.
        route_of: n out: the number of each record's queue, in the order of first appearance.
        routes: (n, 3) out: offset and length of each queue's topic, and the queueId.
        table: scratch space; its length is a power of two, greater than n.
        sums: 2 out: those of `hashing.digest` if the block is valid, and zeros if not asked for.

    Returns:
        The number of records, the number of queues, OK, the length of the block, the number of
        compressed bodies, and the number of records with a DELAY; or the number of the first bad
        record, 0, its status, its offset, 0 and 0.
    """
    found, status, at = _tile(data, rules, starts, sizes)
    start, size = starts[:found], sizes[:found]
    longs, ints = np.empty((5, found), np.int64), np.empty((14, found), np.int32)
    parse(data, start, size, longs, ints)
    wrong = _judge(data, rules, max_body, store_host_v6, allowed_sys_flag, start, ints, longs[4])
    names = (b"TAGS", b"INNER_MULTI_DISPATCH", b"DELAY")
    value_at, length = np.empty((3, found), np.int64), np.empty((3, found), np.int32)
    find_properties(data, start + ints[11], ints[12], names, value_at, length)
    if rules & RULE_PRODUCER:
        wrong[(wrong == OK) & (length[1] >= 0)] = LIGHT_QUEUES
    bad = np.flatnonzero(wrong)
    if len(bad):
        return int(bad[0]), 0, int(wrong[bad[0]]), int(start[bad[0]]), 0, 0
    if status != OK:
        return found, 0, status, at, 0, 0
    sums[:] = digest(data, start, ints) if rules & RULE_DIGEST else 0
    transaction = ints[5] & _TRANSACTION
    queued[:found] = (transaction == 0) | (transaction == 8)
    tags_code[:found] = _hashes(_binary(data, value_at[0], length[0]))
    count = _route(data, start, ints, route_of[:found], routes)
    compressed, delayed = np.count_nonzero(ints[5] & _COMPRESSED), np.count_nonzero(length[2] >= 0)
    return found, count, OK, at, int(compressed), int(delayed)


def _tile(data: U1, rules: int, starts: I8, sizes: I4) -> tuple[int, int, int]:
    """Follow the records from the block's first byte on."""
    found, at, end = 0, 0, len(data)
    view = memoryview(data.data)
    while at < end:
        if found == len(starts):
            return found, MANY_ROWS, at
        if end - at < MIN_RECORD_SIZE:
            return found, SHORT, at
        total, magic = _HEAD.unpack_from(view, at)
        if magic != _V1 and (rules & RULE_CLIENT or magic != _V2):
            return found, BAD_MAGIC, at
        if not MIN_RECORD_SIZE <= total <= end - at:
            return found, SHORT, at
        starts[found], sizes[found] = at, total
        found += 1
        at += total
    return found, OK, at


def _judge(
    data: U1,
    rules: int,
    max_body: int,
    store_host_v6: int,
    allowed_sys_flag: int,
    start: I8,
    ints: I4,
    prepared: I8,
) -> npt.NDArray[np.int32]:
    """Return the status of each record: its first failed check, in this order."""
    wrong = ints[13].copy()
    sys_flag = ints[5].astype(np.int64) & 0xFFFFFFFF

    def check(bad: npt.NDArray[np.bool_], status: int) -> None:
        wrong[(wrong == OK) & bad] = status

    check(ints[8] > max_body, BIG_BODY)
    if rules & RULE_CLIENT:
        check(_bad_topics(data, start, ints), BAD_TOPIC)
        check(ints[3] < 0, BAD_QUEUE_ID)
        hosts = BORNHOST_V6_FLAG | STOREHOST_V6_FLAG
        check((sys_flag & ~(allowed_sys_flag | hosts) & 0xFFFFFFFF) != 0, BAD_SYS_FLAG)
    if store_host_v6 != ANY_STORE_HOST:
        check(((sys_flag & STOREHOST_V6_FLAG) != 0) != (store_host_v6 != 0), BAD_STORE_HOST)
    if rules & RULE_CLIENT:
        check(_has_crc_property(data, start, ints), CRC_PROPERTY)
    if rules & RULE_PRODUCER:
        check(ints[6] < 0, BAD_RECONSUME_TIMES)
        check(prepared != 0, BAD_PREPARED_OFFSET)
        port_at = start + BORN_HOST_AT + np.where(sys_flag & BORNHOST_V6_FLAG, 16, 4)
        port = field_at(data, np.where(wrong == OK, port_at, start), 4, ">u4")
        check(port > _MOST_PORT, BAD_BORN_PORT)
    if rules & RULE_BODY_CRC:
        crc = np.empty(len(start), np.uint32)
        crc32_spans(data, start + ints[7], ints[8], crc)
        check((crc & np.uint32(0x7FFFFFFF)).view(np.int32) != ints[2], BAD_BODY_CRC)
    return wrong


def _bad_topics(data: U1, start: I8, ints: I4) -> npt.NDArray[np.bool_]:
    """Return which topics are empty or invalid UTF-8."""
    coded = _binary(data, start + ints[9], ints[10]).dictionary_encode()
    topics = coded.dictionary.to_pylist()
    bad = np.array([not topic or not _is_utf8(topic) for topic in topics], np.bool_)
    return bad[coded.indices.to_numpy()]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_crc_property(data: U1, start: I8, ints: I4) -> npt.NDArray[np.bool_]:
    """Return which records end with the CRC of the whole record that 5.x can append."""
    has = ints[12] >= _TRAILER
    at = (start + ints[0] - _TRAILER)[has]
    if len(at):
        has[has] = (windows(data, at, len(_TRAILER_HEAD)) == _TRAILER_HEAD).all(axis=1)
    return has


def _route(data: U1, start: I8, ints: I4, route_of: I4, routes: I8) -> int:
    """Number the queues in the order of their first appearance."""
    topic_at = start + ints[9]
    queue_id = _binary(data, start + QUEUE_ID_AT, np.full(len(start), 4, np.int32))
    topic = _binary(data, topic_at, ints[10])
    coded = pc.binary_join_element_wise(queue_id, topic, b"").dictionary_encode()
    route_of[:] = coded.indices.to_numpy()
    count = len(coded.dictionary)
    first = np.empty(count, np.int64)
    first[route_of[::-1]] = np.arange(len(start) - 1, -1, -1)
    routes[:count, 0] = topic_at[first]
    routes[:count, 1] = ints[10][first]
    routes[:count, 2] = ints[3][first]
    return count


def _binary(data: U1, at: I8, length: I4) -> pa.BinaryArray:
    offsets = np.empty(len(at) + 1, np.int32)
    values = np.empty(int(np.maximum(length, 0).sum(dtype=np.int64)), np.uint8)
    gather(data, at, length, offsets, values)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(at), buffers)


def _hashes(texts: pa.BinaryArray) -> I4:
    hashes = np.empty(len(texts), np.int32)
    _, offsets, data = texts.buffers()
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    # An Arrow array without elements may lack even the first offset.
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1) if len(texts) else np.zeros(1)
    hash_texts(bounds.astype(np.int64), raw, hashes)
    return hashes


def number_rows(route_of: I4, queued: U1, next_offsets: I8, queue_offset: I8) -> None:
    """Give each queued row the next offset of its queue.

    Args:
        route_of, queued: n, see `block.Block`.
        next_offsets: one per queue; advanced past the given offsets.
        queue_offset: n out; 0 for a row without an entry.
    """
    _require_routes(route_of, len(next_offsets))
    rows = np.flatnonzero(queued)
    order, bounds = _by_route(route_of[rows], len(next_offsets))
    counts = np.diff(bounds)
    ranks = np.arange(len(rows), dtype=np.int64) - np.repeat(bounds[:-1], counts)
    queue_offset[:] = 0
    queue_offset[rows[order]] = np.repeat(next_offsets, counts) + ranks
    next_offsets += counts


def _require_routes(route_of: I4, count: int) -> None:
    if len(route_of) and (route_of.min() < 0 or route_of.max() >= count):
        raise ValueError("a row has a queue that there is not")


def _by_route(route_of: I4, count: int) -> tuple[I8, I8]:
    """Return the rows ordered by their queues, and where each queue begins among them."""
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(route_of, minlength=count), out=bounds[1:])
    return np.argsort(route_of, kind="stable"), bounds


def stamp_record(
    data: bytearray,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
) -> None:
    """Write the four fields of a record that only the store knows; see `stamp_records`."""
    start, queued, placed = np.array([[0], [queue_offset], [physical_offset]], np.int64)
    raw = np.frombuffer(data, np.uint8)
    stamp_records(raw, start, queued, placed, store_timestamp, store_host)


def stamp_records(
    data: U1,
    starts: I8,
    queue_offset: I8,
    physical_offset: I8,
    store_timestamp: int,
    store_host: bytes,
) -> None:
    """Write the four fields of n records that only the store knows.

    Args:
        data: changed in place.
        store_host: 8 bytes, or 20 for IPv6; must match the sysFlag of each record.
    """
    wide = len(store_host) == HOST_V6_SIZE
    if len(store_host) != HOST_SIZE and not wide:
        raise ValueError("a host has 8 or 20 bytes")
    if len(queue_offset) != len(starts) or len(physical_offset) != len(starts):
        raise ValueError("the arrays differ in number")
    if not len(starts):
        return
    if starts.min() < 0 or starts.max() > len(data) - MIN_RECORD_SIZE:
        raise ValueError("a span lies outside its buffer")
    sys_flag = field_at(data, starts + SYS_FLAG_AT, 4, ">u4")
    more = np.where(sys_flag & BORNHOST_V6_FLAG, V6_EXTRA, 0)
    stamp = np.frombuffer(store_timestamp.to_bytes(8, "big", signed=True) + store_host, np.uint8)
    if (((sys_flag & STOREHOST_V6_FLAG) != 0) != wide).any():
        raise ValueError("a record has room for a host of the other kind")
    if (starts + STORE_TIMESTAMP_AT + more).max() > len(data) - len(stamp):
        raise ValueError("a span lies outside its buffer")
    offsets = np.stack([queue_offset, physical_offset], axis=1).astype(">i8").view(np.uint8)
    data[(starts + QUEUE_OFFSET_AT)[:, None] + np.arange(16)] = offsets
    data[(starts + STORE_TIMESTAMP_AT + more)[:, None] + np.arange(len(stamp))] = stamp


def queue_entries(
    route_of: I4,
    queued: U1,
    physical_offset: I8,
    sizes: I4,
    tags_code: I8,
    entries: U1,
    bounds: I8,
) -> None:
    """Build the ConsumeQueue entries of n rows, grouped by queue.

    Args:
        entries: an entry for each queued row, out.
        bounds: one more than there are queues, out: the entries of queue r are bounds[r] to
            bounds[r + 1] - 1.
    """
    _require_routes(route_of, len(bounds) - 1)
    rows = np.flatnonzero(queued)
    if len(entries) != ENTRY_DTYPE.itemsize * len(rows):
        raise ValueError("an output array is too small")
    order, bounds[:] = _by_route(route_of[rows], len(bounds) - 1)
    rows = rows[order]
    table = entries.view(ENTRY_DTYPE)
    table["physicalOffset"], table["size"] = physical_offset[rows], sizes[rows]
    table["tagsCode"] = tags_code[rows]


def index_hashes(
    data: U1, starts: I8, sizes: I4, first: int, key_hash: I4, rows: I4
) -> tuple[int, int]:
    """Hash the index keys of records, from row `first` on, as far as there is room.

    Args:
        starts, sizes: n, where each record begins, and its bytes.
        key_hash, rows: out: the hash of each key, and the row that it belongs to.

    Returns:
        The row before which it stopped (n when done), and the number of keys.
    """
    if not 0 <= first <= len(starts):
        raise ValueError("a row is asked for that there is not")
    start = starts[first:]
    longs, ints = np.empty((5, len(start)), np.int64), np.empty((14, len(start)), np.int32)
    parse(data, start, sizes[first:], longs, ints)
    if ints[13].any():
        raise ValueError("a record is damaged")
    at, length = np.empty((2, len(start)), np.int64), np.empty((2, len(start)), np.int32)
    find_properties(data, start + ints[11], ints[12], (b"UNIQ_KEY", b"KEYS"), at, length)
    length[:, (ints[5] & _TRANSACTION) == _ROLLBACK] = -1

    unique = np.flatnonzero(length[0] >= 0)
    bounds = np.empty(len(start) + 1, np.int32)
    room = int((np.maximum(length[1], 0) // 2 + 1).sum(dtype=np.int64))
    key_at, key_length = np.empty(room, np.int64), np.empty(room, np.int32)
    m = split_spaces(data, at[1], length[1], bounds, key_at, key_length)
    owner = np.concatenate([unique, np.repeat(np.arange(len(start)), np.diff(bounds))])
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    key_at = np.concatenate([at[0][unique], key_at[:m]])[order]
    key_length = np.concatenate([length[0][unique], key_length[:m]])[order]

    done = len(start)
    if len(owner) > len(key_hash):
        done = int(owner[len(key_hash)])
        count = int(np.searchsorted(owner, done))
        owner, key_at, key_length = owner[:count], key_at[:count], key_length[:count]
    topics = _binary(data, (start + ints[9])[owner], ints[10][owner])
    keyed = pc.binary_join_element_wise(topics, _binary(data, key_at, key_length), b"#")
    key_hash[: len(owner)] = key_hashes(_hashes(keyed))
    rows[: len(owner)] = owner + first
    return first + done, len(owner)
