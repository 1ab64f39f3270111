"""The loops over spans of bytes, in NumPy and Arrow: part of `plain`, the reference decoder."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

__all__ = [
    "byte_index",
    "crc32_spans",
    "find_properties",
    "format_hosts",
    "format_msg_ids",
    "gather",
    "is_ascii",
    "properties",
    "repair_utf8",
    "require_inside",
    "spans_equal",
    "split_spaces",
]

U1 = npt.NDArray[np.uint8]
I4 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int64]


def require_inside(buffer: U1, starts: I8, lengths: I4) -> None:
    """Raise ValueError for spans that reach past their buffer."""
    real = lengths > 0
    if real.any() and (starts[real].min() < 0 or (starts + lengths)[real].max() > len(buffer)):
        raise ValueError("a span lies outside its buffer")


def byte_index(starts: I8, lengths: npt.NDArray[Any]) -> I8:
    """Return the index of every byte of every span, one span after the other."""
    lengths = np.maximum(lengths, 0).astype(np.int64)
    ends = np.cumsum(lengths)
    index = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    return index + np.repeat(starts - (ends - lengths), lengths)


def gather(buffer: U1, starts: I8, lengths: I4, offsets: I4, data: U1) -> None:
    """Copy spans one after the other, into the buffers of an Arrow binary array.

    Args:
        offsets: (n + 1) out.
        data: out, with room for the sum of the lengths.
    """
    require_inside(buffer, starts, lengths)
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
    """Write spans of up to 12 bytes into the views themselves, as Arrow's view layout requires."""
    index = byte_index(starts, lengths)
    lengths = np.maximum(lengths, 0)
    targets = byte_index(rows * 16 + 4, lengths)
    views.view(np.uint8).reshape(-1)[targets] = buffer[index]


def crc32_spans(buffer: U1, starts: I8, lengths: I4, out: npt.NDArray[np.uint32]) -> None:
    """Compute the CRC-32 of each span; 0 for an empty one."""
    require_inside(buffer, starts, lengths)
    view = memoryview(buffer.data)
    out[:] = [
        isal_zlib.crc32(view[start : start + length]) if length > 0 else 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def spans_equal(
    buffer: U1, starts: I8, lengths: I4, other: U1, other_starts: I8, other_lengths: I4, out: U1
) -> None:
    """Compare each span of one buffer to its counterpart in another."""
    require_inside(buffer, starts, lengths)
    require_inside(other, other_starts, other_lengths)
    out[:] = lengths == other_lengths
    rows = np.flatnonzero((out != 0) & (lengths > 0))
    same = (
        buffer[byte_index(starts[rows], lengths[rows])]
        == (other[byte_index(other_starts[rows], other_lengths[rows])])
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
    """Return (n, 21) uint8: the flag, then the address and port, zero-padded."""
    widths = np.where(v6, 20, 8).astype(np.int32)
    require_inside(buffer, starts, widths)
    table = np.zeros((len(starts), 21), np.uint8)
    table[:, 0] = v6 != 0
    rows = np.arange(len(starts), dtype=np.int64) * 21 + 1
    table.reshape(-1)[byte_index(rows, widths)] = buffer[byte_index(starts, widths)]
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
    """Format hosts as `ip:port`, IPv6 as `[ip]:port` in Java's uncompressed form.

    Args:
        starts: where each address begins.
        v6: (n) 1 if the address has 16 bytes, not 4.
        offsets: (n + 1) out.
        data: out, with room for 64 bytes per row.
    """
    if not len(starts):
        offsets[0] = 0
        return
    table = _addresses(buffer, starts, v6)
    width, n = table.shape[1], len(table)
    rows = pa.Array.from_buffers(pa.binary(width), n, [None, pa.py_buffer(table)])
    coded = rows.dictionary_encode()
    texts = [_host_text(address) for address in coded.dictionary.to_pylist()]
    _write_strings(texts, coded.indices.to_numpy().astype(np.int64), offsets, data)


def format_msg_ids(buffer: U1, starts: I8, v6: U1, physical: I8, offsets: I4, data: U1) -> None:
    """Format offset message ids: upper-case hex of host and physical offset.

    Args:
        starts: where each storeHost begins.
        offsets: (n + 1) out.
        data: out, with room for 56 bytes per row.
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
    """Split spans at a separator.

    Returns:
        The row, the start and the end of every non-empty piece, in order.
    """
    rows = np.flatnonzero(lengths > 0)
    index = byte_index(starts[rows], lengths[rows])
    cuts = np.flatnonzero(buffer[index] == separator)
    row_ends = np.cumsum(lengths[rows], dtype=np.int64)
    row_starts = row_ends - lengths[rows]
    opens = np.zeros(len(index) + 1, np.bool_)
    opens[row_starts] = opens[cuts + 1] = True
    begins = np.flatnonzero(opens[:-1])
    owner = np.searchsorted(row_ends, begins, side="right")
    next_cut = np.append(cuts, len(index))[np.searchsorted(cuts, begins)]
    ends = np.minimum(next_cut, row_ends[owner])
    real = ends > begins
    begins, ends, owner = begins[real], ends[real], owner[real]
    shift = starts[rows][owner] - row_starts[owner]
    return rows[owner], begins + shift, ends + shift


def _split_pairs(buffer: U1, starts: I8, lengths: I4) -> tuple[I8, I8, I8, I8]:
    """Return row, start, first 0x01 and end of each valid property (format: Properties)."""
    require_inside(buffer, starts, lengths)
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
    name_offsets: I4,
    names: U1,
    value_offsets: I4,
    values: U1,
    wanted: tuple[bytes, ...],
    found_at: I8,
    found_length: I4,
) -> int:
    """Split properties; if a name occurs twice, the last value counts, at the first one's place.

    Args:
        lengths: at most 32,767 each.
        rows: (n + 1) out: where each row's pairs begin among all m.
        name_offsets, names: out, the names, one after the other; with room for the maximum of pairs
            and bytes.
        value_offsets, values: texts in the same form.
        wanted, found_at, found_length: see `find_properties`.

    Returns:
        m, the number of pairs.
    """
    row, begin, mark, end = _split_pairs(buffer, starts, lengths)
    offsets = np.empty(len(row) + 1, np.int32)
    data = np.empty(int((mark - begin).sum()), np.uint8)
    gather(buffer, begin, (mark - begin).astype(np.int32), offsets, data)
    every_name = pa.Array.from_buffers(
        pa.binary(), len(row), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    codes = every_name.dictionary_encode().indices.to_numpy().astype(np.int64)
    # Equal names of a row get the same number, in the order of first appearance.
    pairs = pa.array(row * (len(row) + 1) + codes).dictionary_encode()
    m = len(pairs.dictionary)
    if m >= len(name_offsets):
        raise ValueError("an output array is too small")
    last = np.empty(m, np.int64)
    last[pairs.indices.to_numpy()] = np.arange(len(row))
    at, to, until = begin[last], mark[last], end[last]
    gather(buffer, at, (to - at).astype(np.int32), name_offsets[: m + 1], names)
    gather(buffer, to + 1, (until - to - 1).astype(np.int32), value_offsets[: m + 1], values)
    rows[:] = np.searchsorted(row[last], np.arange(len(starts) + 1))
    _find(buffer, row, begin, mark, end, wanted, found_at, found_length)
    return m


def find_properties(
    buffer: U1,
    starts: I8,
    lengths: I4,
    names: tuple[bytes, ...],
    found_at: I8,
    found_length: I4,
) -> None:
    """Find the values of a few properties in one pass.

    Args:
        names: k of them, at most 8.
        found_at: (k, n) out: where the value of each begins.
        found_length: (k, n) out: its length, -1 for a row without one.
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
        # Assignment keeps the last of several hits in a row: the last value counts.
        found_at[k, row[hits]] = mark[hits] + 1
        found_length[k, row[hits]] = end[hits] - mark[hits] - 1


def split_spaces(
    buffer: U1, starts: I8, lengths: I4, rows: I4, piece_at: I8, piece_length: I4
) -> int:
    """Split values at runs of spaces, as in KEYS.

    Returns:
        The number of pieces.
    """
    require_inside(buffer, starts, lengths)
    row, begin, end = _pieces(buffer, starts, lengths, ord(" "))
    if len(row) > len(piece_at):
        raise ValueError("an output array is too small")
    piece_at[: len(row)] = begin
    piece_length[: len(row)] = end - begin
    rows[:] = np.searchsorted(row, np.arange(len(starts) + 1))
    return len(row)


def is_ascii(data: U1) -> bool:
    """Return whether no byte has its highest bit set."""
    return not len(data) or int(data.max()) < 0x80


def repair_utf8(offsets: I4, data: U1, new_offsets: I4, out: U1) -> int:
    """Copy strings, and replace each maximal invalid sequence by one U+FFFD.

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
