"""The loops of the record decoder in NumPy and Arrow: the reference of the compiled kernel.

The loops over records are here, those over spans of bytes in `plain_spans.py`. Every function has a
twin of the same name and arguments in `_kernel.c`; both write into arrays that the caller made, and
`kernel.py` chooses between them. Positions are byte offsets into `buffer` (uint8), lengths are
bytes; -1 as a length means "no value".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.plain_spans import (
    I4,
    I8,
    U1,
    crc32_spans,
    find_properties,
    format_hosts,
    format_msg_ids,
    gather,
    is_ascii,
    properties,
    repair_utf8,
    spans_equal,
    split_spaces,
)

__all__ = [
    "absorb",
    "crc32_spans",
    "find_properties",
    "format_hosts",
    "format_msg_ids",
    "gather",
    "is_ascii",
    "parse",
    "pread_spans",
    "properties",
    "record_crc_differs",
    "repair_utf8",
    "spans_equal",
    "split_entries",
    "split_spaces",
    "walk",
]

MAGIC = {0xDAA320A7: 1, 0xDAA320AB: 2}  # -> bytes of the topic's length
BLANK = 0xCBD43194
MIN_RECORD = 91

STOP_FULL, STOP_MORE, STOP_BLANK, STOP_BAD = range(4)
OK, SHORT, BAD_MAGIC, BAD_LENGTHS, BAD_BODY_CRC, BAD_RECORD_CRC = range(6)
CHECK_BODY, CHECK_RECORD = 1, 2

_ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_FILLER = 2_147_483_647

_TRAILER = 20  # "__CRC32#", 0x01, ten digits with the least first, 0x02
_TRAILER_HEAD = np.frombuffer(b"__CRC32#\x01", np.uint8)


def pread_spans(fd: int, offsets: I8, lengths: I4, out: U1) -> int:
    """Read spans of an open file one behind the other into `out`.

    Returns:
        The number of spans read in full; fewer than asked where the file ends early.
    """
    at = 0
    target = memoryview(out.data)
    for done, (offset, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
        end = at + length
        while at < end:
            got = os.preadv(fd, [target[at:end]], offset)
            if got == 0:
                return done
            at += got
            offset += got
    return len(offsets)


def _u4(buffer: U1, at: I8) -> npt.NDArray[np.int64]:
    return _field(buffer, at, 4, ">u4").astype(np.int64)


def _field(buffer: U1, at: I8, width: int, kind: str) -> npt.NDArray[Any]:
    if len(buffer) < width or not len(at):
        return np.zeros(len(at), kind)
    windows = np.lib.stride_tricks.sliding_window_view(buffer, width)
    return np.ascontiguousarray(windows[at]).view(kind)[:, 0]


def walk(
    buffer: U1, start: int, end: int, base: int, lead: int, positions: I8
) -> tuple[int, int, int]:
    """Follow the records that tile `buffer[start:end]`.

    Args:
        base: physical offset of the buffer's first byte; each record must name its own place.
        lead: bytes before each record: 0, or 48 in a DLedger log.
        positions: filled with the place of each record's first byte.

    Returns:
        How many records were found, why the walk stopped (STOP_*), and at which byte.
    """
    found = 0
    at = start
    view = memoryview(buffer.data)
    closing = (0xFFFFFFFF, 0) if lead else (BLANK, 4)
    while found < len(positions):
        if end - at < 8:
            return found, STOP_MORE, at
        first = int.from_bytes(view[at : at + 4], "big")
        second = int.from_bytes(view[at + 4 : at + 8], "big")
        unit, magic = (second, first) if lead else (first, second)
        if magic == closing[0]:
            return found, STOP_BLANK, at
        if (magic != 1 if lead else magic not in MAGIC) or not lead + MIN_RECORD <= unit < 2**31:
            return found, STOP_BAD, at
        if end - at < unit:
            return found, STOP_MORE, at
        record = at + lead
        if (
            int.from_bytes(view[record + 4 : record + 8], "big") not in MAGIC
            or int.from_bytes(view[record + 28 : record + 36], "big", signed=True) != base + record
            or int.from_bytes(view[record : record + 4], "big") != unit - lead
        ):
            return found, STOP_BAD, at
        positions[found] = record
        found += 1
        at += unit
    return found, STOP_FULL, at


def parse(buffer: U1, positions: I8, rooms: I4, longs: I8, ints: I4) -> None:
    """Read the fixed fields of records and find their body, topic and properties.

    Args:
        rooms: bytes that may belong to each record, from its position on.
        longs: (5, n) out: queueOffset, physicalOffset, bornTimestamp, storeTimestamp,
            preparedTransactionOffset.
        ints: (14, n) out: storeSize, magic, bodyCRC, queueId, flag, sysFlag, reconsumeTimes,
            then where (from the record's start) and how long body, topic and properties are,
            and the status; all 0 but the status where that is not OK.
    """
    ints[:] = 0
    longs[:] = 0
    fits = (positions >= 0) & (rooms >= MIN_RECORD) & (positions + rooms <= len(buffer))
    ints[13] = np.where(fits, OK, SHORT)
    rows = np.flatnonzero(fits)
    at = positions[rows]
    total = _field(buffer, at, 4, ">i4").astype(np.int64)
    magic = _u4(buffer, at + 4)
    sys_flag = _field(buffer, at + 36, 4, ">i4").astype(np.int64)
    width = np.where(magic == 0xDAA320AB, 2, 1)
    status = np.where((magic == 0xDAA320A7) | (magic == 0xDAA320AB), OK, BAD_MAGIC)
    status[(status == OK) & ((total < MIN_RECORD) | (total > rooms[rows]))] = SHORT
    store_time = 48 + np.where(sys_flag & 0x10, 20, 8)
    reconsume = store_time + np.where(sys_flag & 0x20, 28, 16)
    body_at = reconsume + 16
    status[(status == OK) & (body_at + width + 2 > total)] = BAD_LENGTHS

    good = status == OK
    reconsume_at = np.where(good, at + reconsume, at)
    body = _field(buffer, np.where(good, reconsume_at + 12, at), 4, ">i4").astype(np.int64)
    status[good & ((body < 0) | (body > total - body_at - width - 2))] = BAD_LENGTHS
    good = status == OK
    topic_field = np.where(good, at + body_at + body, at)
    topic = buffer[topic_field].astype(np.int64)
    topic = np.where(width == 2, topic << 8 | buffer[topic_field + 1], topic)
    topic_at = body_at + body + width
    limit = np.where(width == 2, 32767, 127)
    status[good & ((topic > limit) | (topic > total - topic_at - 2))] = BAD_LENGTHS
    good = status == OK
    length = _field(buffer, np.where(good, at + topic_at + topic, at), 2, ">u2").astype(np.int64)
    properties_at = topic_at + topic + 2
    status[good & ((length > 32767) | (length != total - properties_at))] = BAD_LENGTHS

    ints[13, rows] = status
    good = status == OK
    rows, at = rows[good], at[good]
    for field, offset in ((2, 8), (3, 12), (4, 16)):
        ints[field, rows] = _field(buffer, at + offset, 4, ">i4")
    for field, offset in ((0, 20), (1, 28), (2, 40)):
        longs[field, rows] = _field(buffer, at + offset, 8, ">i8")
    ints[0, rows] = total[good]
    ints[1, rows] = magic[good].astype(np.uint32).view(np.int32)
    ints[5, rows] = sys_flag[good]
    ints[6, rows] = _field(buffer, reconsume_at[good], 4, ">i4")
    longs[3, rows] = _field(buffer, at + store_time[good], 8, ">i8")
    longs[4, rows] = _field(buffer, reconsume_at[good] + 4, 8, ">i8")
    spans = (body_at, body, topic_at, topic, properties_at, length)
    for field, values in enumerate(spans, start=7):
        ints[field, rows] = values[good]


def split_entries(data: U1, offsets: I8, sizes: I4, codes: I8) -> bool:
    """Take n ConsumeQueue entries apart.

    Args:
        data: n * 20 bytes, or more.
        offsets, sizes, codes: n out: physicalOffset, size and tagsCode of each.

    Returns:
        Whether each of them stands for a message (see `consumequeue.live_mask`).
    """
    fields = _ENTRY.itemsize
    entries = data[: len(offsets) * fields].view(_ENTRY)
    offsets[:], sizes[:], codes[:] = entries["offset"], entries["size"], entries["code"]
    filler = (sizes == _FILLER) & (offsets == 0) & (codes == 0)
    return not bool(((offsets < 0) | (sizes <= 0) | filler).any())


def record_crc_differs(
    buffer: U1,
    positions: I8,
    sizes: I4,
    lengths: I4,
    crc32: Callable[[U1, I8, I4, npt.NDArray[np.uint32]], object] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which records fail the CRC of the whole record that 5.x can put behind them.

    Args:
        positions, sizes: n records.
        lengths: bytes of the properties of each.
        crc32: what computes checksums, `crc32_spans` by default.
    """
    bad = np.zeros(len(positions), np.bool_)
    rows = np.flatnonzero(lengths >= _TRAILER)
    at = positions[rows] + sizes[rows] - _TRAILER
    # A glance at one byte first: hardly any store has the property at all.
    hit = buffer[at] == _TRAILER_HEAD[0]
    rows, at = rows[hit], at[hit]
    if not len(rows):
        return bad
    trailers = np.lib.stride_tricks.sliding_window_view(buffer, _TRAILER)[at]
    hit = (trailers[:, : len(_TRAILER_HEAD)] == _TRAILER_HEAD).all(axis=1)
    rows, trailers = rows[hit], trailers[hit]
    digits = trailers[:, len(_TRAILER_HEAD) : -1].astype(np.int64) - ord("0")
    found = np.empty(len(rows), np.uint32)
    (crc32 or crc32_spans)(buffer, positions[rows], sizes[rows] - _TRAILER, found)
    stated = (digits * 10 ** np.arange(10)).sum(axis=1)
    odd = ((digits < 0) | (digits > 9)).any(axis=1)
    bad[rows] = odd | (stated != (found & np.uint32(0x7FFFFFFF)))
    return bad


def absorb(
    buffer: U1,
    positions: I8,
    rooms: I4,
    first: int,
    last: int,
    checks: int,
    bodies: U1,
    tail: int,
    rest: U1,
    rest_tail: int,
    body_at: I8,
    rest_at: I8,
    longs: I8,
    ints: I4,
) -> tuple[int, int]:
    """Read records `first` to `last - 1` as `parse` does, and part their bodies from the rest.

    Args:
        positions, rooms: n, as in `parse`.
        checks: CHECK_BODY and CHECK_RECORD: what CRC to check; one that fails shows in the status.
        bodies: where bodies are put, one behind the other from `tail` on; empty if unwanted. May be
            `buffer` itself, if `tail` is not past the first record, and records do not overlap.
        rest: where the records without their bodies are put, from `rest_tail` on.
        body_at, rest_at: n out: where body and rest of each were put.
        longs, ints: (5, n) and (14, n) out, as in `parse`, but with the places of topic and
            properties as they are in `rest`.

    Returns:
        The new `tail` and `rest_tail`.
    """
    some = slice(first, last)
    part_longs = np.empty((5, last - first), np.int64)
    part_ints = np.empty((14, last - first), np.int32)
    at = positions[some]
    parse(buffer, at, rooms[some], part_longs, part_ints)
    status = part_ints[13]
    if checks & CHECK_BODY:
        crc = np.empty(last - first, np.uint32)
        crc32_spans(buffer, at + part_ints[7], part_ints[8], crc)
        wrong = (crc & np.uint32(0x7FFFFFFF)).view(np.int32) != part_ints[2]
        status[(status == OK) & wrong] = BAD_BODY_CRC
    if checks & CHECK_RECORD:
        wrong = record_crc_differs(buffer, at, part_ints[0], part_ints[12])
        status[wrong] = BAD_RECORD_CRC
    bad = status != OK
    part_longs[:, bad] = 0
    part_ints[:13, bad] = 0
    total, head, body = part_ints[0], part_ints[7], part_ints[8]
    begins = np.stack([at, at + head + body], axis=1).reshape(-1)
    sizes = np.stack([head, total - head - body], axis=1).reshape(-1)
    rest_ends = _append(buffer, begins, sizes, rest, rest_tail)
    rest_at[some] = rest_ends[1::2] - (total - body)
    if len(bodies):
        ends = _append(buffer, at + head, body, bodies, tail)
        body_at[some] = ends - body
        tail = int(ends[-1]) if len(ends) else tail
    else:
        body_at[some] = tail
    part_ints[9] -= body
    part_ints[11] -= body
    longs[:, some] = part_longs
    ints[:, some] = part_ints
    return tail, int(rest_ends[-1]) if len(rest_ends) else rest_tail


def _append(buffer: U1, starts: I8, lengths: I4, out: U1, tail: int) -> I8:
    """Copy spans one behind the other from a place in `out` on; gives where each ends."""
    ends = tail + np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) - tail if len(ends) else 0
    if tail + total > len(out):
        raise ValueError("an output array is too small")
    copy = np.empty(total, np.uint8)
    gather(buffer, starts, lengths, np.empty(len(lengths) + 1, np.int32), copy)
    out[tail : tail + total] = copy
    return ends
