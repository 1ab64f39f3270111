"""The loops of the record decoder in NumPy and Arrow: the reference of the compiled kernel.

Every function here has a twin of the same name and arguments in `_kernel.c`; both write into
arrays that the caller made, and `kernel.py` chooses between them. Positions are byte offsets
into `buffer` (uint8), lengths are bytes; -1 as a length means "no value".
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

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
    "split_spaces",
    "walk",
]

U1 = npt.NDArray[np.uint8]
I4 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int64]

MAGIC = {0xDAA320A7: 1, 0xDAA320AB: 2}  # -> bytes of the topic's length
BLANK = 0xCBD43194
MIN_RECORD = 91

STOP_FULL, STOP_MORE, STOP_BLANK, STOP_BAD = range(4)
OK, SHORT, BAD_MAGIC, BAD_LENGTHS, BAD_BODY_CRC, BAD_RECORD_CRC = range(6)
CHECK_BODY, CHECK_RECORD = 1, 2

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


def _require_inside(buffer: U1, starts: I8, lengths: I4) -> None:
    real = lengths > 0
    if real.any() and (starts[real].min() < 0 or (starts + lengths)[real].max() > len(buffer)):
        raise ValueError("a span lies outside its buffer")


def _byte_index(starts: I8, lengths: npt.NDArray[Any]) -> I8:
    """Index of every byte of every span, one span behind the other."""
    lengths = np.maximum(lengths, 0).astype(np.int64)
    ends = np.cumsum(lengths)
    index = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    return index + np.repeat(starts - (ends - lengths), lengths)


def gather(buffer: U1, starts: I8, lengths: I4, offsets: I4, data: U1) -> None:
    """Copy spans one behind the other: the buffers of an Arrow binary array.

    Args:
        offsets: (n + 1) out.
        data: out, with room for the sum of the lengths.
    """
    _require_inside(buffer, starts, lengths)
    offsets[0] = 0
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    if not len(lengths) or not offsets[-1]:
        return
    views = np.zeros((len(lengths), 4), np.int32)
    views[:, 0] = np.maximum(lengths, 0)
    short = views[:, 0] <= 12
    views[~short, 3] = starts[~short]
    _inline(buffer, starts[short], lengths[short], views, np.flatnonzero(short))
    array = pa.Array.from_buffers(
        pa.binary_view(), len(lengths), [None, pa.py_buffer(views), pa.py_buffer(buffer)]
    ).cast(pa.binary())
    data[: offsets[-1]] = np.frombuffer(array.buffers()[2], np.uint8, offsets[-1])


def _inline(buffer: U1, starts: I8, lengths: I4, views: I4, rows: I8) -> None:
    """Put spans of up to 12 bytes into the views themselves, as Arrow's view layout has them."""
    index = _byte_index(starts, lengths)
    lengths = np.maximum(lengths, 0)
    targets = _byte_index(rows * 16 + 4, lengths)
    views.view(np.uint8).reshape(-1)[targets] = buffer[index]


def crc32_spans(buffer: U1, starts: I8, lengths: I4, out: npt.NDArray[np.uint32]) -> None:
    """CRC-32 of each span; 0 for an empty one."""
    _require_inside(buffer, starts, lengths)
    view = memoryview(buffer.data)
    out[:] = [
        isal_zlib.crc32(view[start : start + length]) if length > 0 else 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def spans_equal(
    buffer: U1, starts: I8, lengths: I4, other: U1, other_starts: I8, other_lengths: I4, out: U1
) -> None:
    """Whether each span of one buffer holds the same bytes as its partner in another."""
    _require_inside(buffer, starts, lengths)
    _require_inside(other, other_starts, other_lengths)
    out[:] = lengths == other_lengths
    rows = np.flatnonzero((out != 0) & (lengths > 0))
    same = (
        buffer[_byte_index(starts[rows], lengths[rows])]
        == (other[_byte_index(other_starts[rows], other_lengths[rows])])
    )
    if len(rows):
        edges = np.cumsum(lengths[rows]) - lengths[rows]
        out[rows] = np.logical_and.reduceat(same, edges)


def _write_strings(texts: list[bytes], inverse: I8, offsets: I4, data: U1) -> None:
    pool = np.frombuffer(b"".join(texts), np.uint8)
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    gather(pool, starts[inverse], sizes[inverse], offsets, data)


def _addresses(buffer: U1, starts: I8, v6: U1) -> npt.NDArray[np.uint8]:
    """(n, 21) uint8: the flag, then the address and port, zero-padded."""
    widths = np.where(v6, 20, 8).astype(np.int32)
    _require_inside(buffer, starts, widths)
    table = np.zeros((len(starts), 21), np.uint8)
    table[:, 0] = v6 != 0
    rows = np.arange(len(starts), dtype=np.int64) * 21 + 1
    table.reshape(-1)[_byte_index(rows, widths)] = buffer[_byte_index(starts, widths)]
    return table


def _host_text(address: bytes) -> bytes:
    wide = address[0]
    raw = address[1 : 17 if wide else 5]
    port = int.from_bytes(address[17:21] if wide else address[5:9], "big", signed=True)
    if wide:
        groups = ":".join(f"{raw[i] << 8 | raw[i + 1]:x}" for i in range(0, 16, 2))
        return f"[{groups}]:{port}".encode()
    return f"{'.'.join(map(str, raw))}:{port}".encode()


def format_hosts(buffer: U1, starts: I8, v6: U1, offsets: I4, data: U1) -> None:
    """Print hosts as `ip:port`, IPv6 as `[ip]:port` in Java's uncompressed form.

    Args:
        starts: where each address begins.
        v6: (n) 1 where it is 16 bytes and not 4.
        offsets: (n + 1) out.
        data: out, with room for 64 bytes a row.
    """
    if not len(starts):
        offsets[0] = 0
        return
    table = _addresses(buffer, starts, v6)
    unique, inverse = np.unique(table, axis=0, return_inverse=True)
    _write_strings([_host_text(row.tobytes()) for row in unique], inverse.ravel(), offsets, data)


def format_msg_ids(buffer: U1, starts: I8, v6: U1, physical: I8, offsets: I4, data: U1) -> None:
    """Print offset message ids: upper-case hex of host and physical offset.

    Args:
        starts: where each storeHost begins.
        offsets: (n + 1) out.
        data: out, with room for 56 bytes a row.
    """
    widths = np.where(v6, 28, 16).astype(np.int64)
    ids = np.zeros((len(starts), 28), np.uint8)
    hosts = _addresses(buffer, starts, v6)
    ids[:, :20] = hosts[:, 1:]
    raw = physical.astype(">i8").view(np.uint8).reshape(-1, 8)
    ids[np.arange(len(starts))[:, None], (widths - 8)[:, None] + np.arange(8)] = raw
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    text = np.empty((len(starts), 56), np.uint8)
    text[:, 0::2] = digits[ids >> 4]
    text[:, 1::2] = digits[ids & 15]
    rows = np.arange(len(starts), dtype=np.int64) * 56
    gather(text.reshape(-1), rows, (2 * widths).astype(np.int32), offsets, data)


def _pieces(buffer: U1, starts: I8, lengths: I4, separator: int) -> tuple[I8, I8, I8]:
    """Cut spans at a separator.

    Returns:
        The row, the start and the end of every piece that is not empty, in order.
    """
    rows = np.flatnonzero(lengths > 0)
    index = _byte_index(starts[rows], lengths[rows])
    cuts = np.flatnonzero(buffer[index] == separator)
    row_ends = np.cumsum(lengths[rows], dtype=np.int64)
    row_starts = row_ends - lengths[rows]
    begins = np.unique(np.concatenate([row_starts, cuts + 1]))
    begins = begins[begins < len(index)]
    owner = np.searchsorted(row_ends, begins, side="right")
    next_cut = np.append(cuts, len(index))[np.searchsorted(cuts, begins)]
    ends = np.minimum(next_cut, row_ends[owner])
    real = ends > begins
    begins, ends, owner = begins[real], ends[real], owner[real]
    shift = starts[rows][owner] - row_starts[owner]
    return rows[owner], begins + shift, ends + shift


def _split_pairs(buffer: U1, starts: I8, lengths: I4) -> tuple[I8, I8, I8, I8]:
    """Row, start, first 0x01 and end of each piece that is a property (format: Properties)."""
    _require_inside(buffer, starts, lengths)
    row, begin, end = _pieces(buffer, starts, lengths, 2)
    marks = np.flatnonzero(buffer == 1)
    marks = np.append(marks, len(buffer))
    mark = marks[np.searchsorted(marks, begin)]
    real = (mark > begin) & (mark + 1 < end)
    return row[real], begin[real], mark[real], end[real]


def properties(
    buffer: U1,
    starts: I8,
    lengths: I4,
    rows: I4,
    name_at: I8,
    name_length: I4,
    value_at: I8,
    value_length: I4,
    names: tuple[bytes, ...],
    found_at: I8,
    found_length: I4,
) -> int:
    """Take properties apart; of a name given twice the last value counts, at the first's place.

    Args:
        rows: (n + 1) out: where each row's pairs begin in the four arrays that follow.
        names, found_at, found_length: see `find_properties`.

    Returns:
        The number of pairs.
    """
    row, begin, mark, end = _split_pairs(buffer, starts, lengths)
    offsets = np.empty(len(row) + 1, np.int32)
    data = np.empty(int((mark - begin).sum()), np.uint8)
    gather(buffer, begin, (mark - begin).astype(np.int32), offsets, data)
    all_names = pa.Array.from_buffers(
        pa.binary(), len(row), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    codes = all_names.dictionary_encode().indices.to_numpy().astype(np.int64)
    identity = row * (len(row) + 1) + codes
    _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
    last = np.empty(len(first), np.int64)
    last[inverse.ravel()] = np.arange(len(row))
    order = np.argsort(first)
    count = len(first)
    if count > len(name_at):
        raise ValueError("an output array is too small")
    chosen = last[order]
    name_at[:count] = begin[chosen]
    name_length[:count] = (mark - begin)[chosen]
    value_at[:count] = mark[chosen] + 1
    value_length[:count] = (end - mark - 1)[chosen]
    rows[:] = np.searchsorted(row[first[order]], np.arange(len(starts) + 1))
    _find(buffer, row, begin, mark, end, names, found_at, found_length)
    return count


def find_properties(
    buffer: U1,
    starts: I8,
    lengths: I4,
    names: tuple[bytes, ...],
    found_at: I8,
    found_length: I4,
) -> None:
    """Find the values of a few properties, all in one pass.

    Args:
        names: k of them, at most 8.
        found_at: (k, n) out: where the value of each begins.
        found_length: (k, n) out: its length, -1 where a row has none.
    """
    row, begin, mark, end = _split_pairs(buffer, starts, lengths)
    _find(buffer, row, begin, mark, end, names, found_at, found_length)


def _find(
    buffer: U1,
    row: I8,
    begin: I8,
    mark: I8,
    end: I8,
    names: tuple[bytes, ...],
    found_at: I8,
    found_length: I4,
) -> None:
    found_at[:] = 0
    found_length[:] = -1
    for k, name in enumerate(names):
        candidates = np.flatnonzero(mark - begin == len(name))
        windows = buffer[begin[candidates, None] + np.arange(len(name))]
        hits = candidates[(windows == np.frombuffer(name, np.uint8)).all(axis=1)]
        # Assignment keeps the last of several hits in a row, which is the one that counts.
        found_at[k, row[hits]] = mark[hits] + 1
        found_length[k, row[hits]] = end[hits] - mark[hits] - 1


def split_spaces(
    buffer: U1, starts: I8, lengths: I4, rows: I4, piece_at: I8, piece_length: I4
) -> int:
    """Cut values at runs of spaces, as KEYS are cut.

    Returns:
        The number of pieces.
    """
    _require_inside(buffer, starts, lengths)
    row, begin, end = _pieces(buffer, starts, lengths, ord(" "))
    if len(row) > len(piece_at):
        raise ValueError("an output array is too small")
    piece_at[: len(row)] = begin
    piece_length[: len(row)] = end - begin
    rows[:] = np.searchsorted(row, np.arange(len(starts) + 1))
    return len(row)


def is_ascii(data: U1) -> bool:
    """Whether no byte has its highest bit set."""
    return not len(data) or int(data.max()) < 0x80


def repair_utf8(offsets: I4, data: U1, new_offsets: I4, out: U1) -> int:
    """Copy strings, each longest invalid start of a character becoming one U+FFFD.

    Returns:
        The number of bytes written to `out`, which has room for three times the input.
    """
    raw = data.tobytes()
    bounds = offsets.tolist()
    texts = [raw[a:b].decode("utf-8", "replace").encode() for a, b in itertools.pairwise(bounds)]
    joined = b"".join(texts)
    new_offsets[0] = 0
    np.cumsum([len(text) for text in texts], out=new_offsets[1:])
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(joined)
