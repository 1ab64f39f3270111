"""The loops of the record decoder in NumPy and Arrow: the reference of the compiled kernel.

The loops over records are here and in `parse`, those over spans of bytes in `spans`, those that
write records in `encode`, those over blocks to be stored in `block`, those over queue entries in
`entries`, those over requests to send in `requests`, `sends` and `answers`, those over entries of a
group in `members`, and those over hashes in `hashing`. Every function has a compiled counterpart of
the same name and arguments (`c/kernel.c`). Both write into arrays that the caller allocates, and
the package `kernel` chooses between them. Positions are byte offsets into `buffer` (uint8), lengths
are bytes; -1 as a length means "no value".
"""

from __future__ import annotations

import os

import numpy as np

from rmqstore_spark.layout.fields import (
    HEAD_SIZE,
    MAGIC_PLACE,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_PLACE,
    TOTAL_SIZE_PLACE,
)
from rmqstore_spark.layout.kernel.reference.answers import write_answer, write_answers
from rmqstore_spark.layout.kernel.reference.block import (
    check_block,
    index_hashes,
    number_rows,
    queue_entries,
    stamp_record,
    stamp_records,
)
from rmqstore_spark.layout.kernel.reference.encode import join_texts, write_records
from rmqstore_spark.layout.kernel.reference.entries import pick_entries, split_entries
from rmqstore_spark.layout.kernel.reference.hashing import content_hashes, hash_texts, link_keys
from rmqstore_spark.layout.kernel.reference.members import sound_records, write_entries
from rmqstore_spark.layout.kernel.reference.parse import (
    BAD_BODY_CRC,
    BAD_LENGTHS,
    BAD_MAGIC,
    BAD_RECORD_CRC,
    MAGIC,
    OK,
    SHORT,
    as_claimed,
    parse,
    record_crc_differs,
    split_batch,
)
from rmqstore_spark.layout.kernel.reference.requests import plain_sends
from rmqstore_spark.layout.kernel.reference.sends import check_single, write_send, write_sends
from rmqstore_spark.layout.kernel.reference.spans import (
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
    "BAD_BODY_CRC",
    "BAD_LENGTHS",
    "BAD_MAGIC",
    "BAD_RECORD_CRC",
    "OK",
    "SHORT",
    "absorb",
    "as_claimed",
    "check_block",
    "check_single",
    "content_hashes",
    "crc32_spans",
    "find_properties",
    "format_hosts",
    "format_msg_ids",
    "gather",
    "hash_texts",
    "index_hashes",
    "is_ascii",
    "join_texts",
    "link_keys",
    "number_rows",
    "parse",
    "pick_entries",
    "plain_sends",
    "pread_spans",
    "properties",
    "queue_entries",
    "record_crc_differs",
    "repair_utf8",
    "sound_records",
    "spans_equal",
    "split_batch",
    "split_entries",
    "split_spaces",
    "stamp_record",
    "stamp_records",
    "walk",
    "write_answer",
    "write_answers",
    "write_entries",
    "write_records",
    "write_send",
    "write_sends",
]

BLANK = 0xCBD43194

STOP_FULL, STOP_MORE, STOP_BLANK, STOP_BAD = range(4)
CHECK_BODY, CHECK_RECORD = 1, 2


def pread_spans(fd: int, offsets: I8, lengths: I4, out: U1, flags: int = 0) -> int:
    """Read spans of an open file into `out`, one after the other.

    Args:
        flags: flags of preadv2 (RWF_...), which only Linux knows.

    Returns:
        The number of spans read in full; fewer than requested if the file ends early.
    """
    at = 0
    target = memoryview(out.data)
    for done, (offset, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
        end = at + length
        while at < end:
            got = os.preadv(fd, [target[at:end]], offset, flags)
            if got == 0:
                return done
            at += got
            offset += got
    return len(offsets)


def walk(
    buffer: U1, start: int, end: int, base: int, lead: int, positions: I8
) -> tuple[int, int, int]:
    """Follow the records that fill `buffer[start:end]`.

    Args:
        base: physical offset of the buffer's first byte; each record must hold its own offset.
        lead: bytes before each record: 0, or 48 in a DLedger log.
        positions: filled with the position of each record's first byte.

    Returns:
        The number of records found, why the walk stopped (STOP_*), and at which byte.
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
        is_known = magic == 1 if lead else magic in MAGIC
        if not is_known or not lead + MIN_RECORD_SIZE <= unit < 2**31:
            return found, STOP_BAD, at
        if end - at < unit:
            return found, STOP_MORE, at
        record = at + lead
        head = view[record : record + HEAD_SIZE]
        if (
            int.from_bytes(head[MAGIC_PLACE], "big") not in MAGIC
            or int.from_bytes(head[PHYSICAL_OFFSET_PLACE], "big", signed=True) != base + record
            or int.from_bytes(head[TOTAL_SIZE_PLACE], "big") != unit - lead
        ):
            return found, STOP_BAD, at
        positions[found] = record
        found += 1
        at += unit
    return found, STOP_FULL, at


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
    """Read records `first` to `last - 1` as `parse` does, and separate their bodies.

    Args:
        positions, rooms: n, as in `parse`.
        checks: CHECK_BODY and CHECK_RECORD: which CRCs to check; a failure shows in the status.
        bodies: receives the bodies, one after the other from `tail` on; empty if not wanted. May
            be `buffer` itself, if `tail` is not past the first record, and records do not overlap.
        rest: receives the records without their bodies, from `rest_tail` on.
        body_at, rest_at: n out: where the body and the rest of each were written.
        longs, ints: (5, n) and (14, n) out, as in `parse`, but with the offsets of topic and
            properties in `rest`.

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
    """Copy spans into `out` from `tail` on, one after the other; return where each ends."""
    ends = tail + np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) - tail if len(ends) else 0
    if tail + total > len(out):
        raise ValueError("an output array is too small")
    copy = np.empty(total, np.uint8)
    gather(buffer, starts, lengths, np.empty(len(lengths) + 1, np.int32), copy)
    out[tail : tail + total] = copy
    return ends
