"""Spans of a buffer, and Arrow arrays built from them.

A span is a start (int64) and a length (int32); a length of -1 means "no value" and becomes null.
All functions call the kernel once per column, never once per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout import kernel

U1 = npt.NDArray[np.uint8]
I4 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """n spans of one buffer.

    Attributes:
        buffer: uint8.
        starts: n byte offsets.
        lengths: n byte counts; -1 for no value.
        settled: the buffer will not be written again, so an array may share it.
    """

    buffer: U1
    starts: I8
    lengths: I4
    settled: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: npt.NDArray[np.int64]) -> Spans:
        """Return the spans of some rows, in that order."""
        return Spans(self.buffer, self.starts[rows], self.lengths[rows], self.settled)

    def texts(self) -> tuple[I4, U1]:
        """Return n + 1 offsets, and the bytes of the spans, one after the other; none is a null."""
        offsets = np.empty(len(self) + 1, np.int32)
        data = np.empty(int(self.lengths.sum(dtype=np.int64)), np.uint8)
        kernel.active.gather(self.buffer, self.starts, self.lengths, offsets, data)
        return offsets, data

    def equal(self, other: Spans) -> npt.NDArray[np.bool_]:
        """Return which spans hold the same bytes as their counterparts."""
        out = np.empty(len(self), np.uint8)
        kernel.active.spans_equal(
            self.buffer, self.starts, self.lengths, other.buffer, other.starts, other.lengths, out
        )
        return out.view(np.bool_)

    def with_zeros(self) -> I8:
        """Return the rows of the spans that hold a zero byte, ascending."""
        offsets, data = self.texts()
        rows = np.flatnonzero(self.lengths > 0)
        if data.all():
            return rows[:0]
        return rows[np.minimum.reduceat(data, offsets[rows]) == 0]

    def crc32(self) -> npt.NDArray[np.uint32]:
        """Return the CRC-32 of each span."""
        out = np.empty(len(self), np.uint32)
        kernel.active.crc32_spans(self.buffer, self.starts, self.lengths, out)
        return out

    def content_hashes(self) -> npt.NDArray[np.uint64]:
        """Return a hash of each span that tells its bytes from any others; 0 for no bytes."""
        out = np.empty(len(self), np.uint64)
        kernel.active.content_hashes(self.buffer, self.starts, self.lengths, out)
        return out


def text_pool(texts: list[str]) -> Spans:
    """Return one span per text, over a new buffer."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    lengths = np.array([len(text) for text in encoded], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    return Spans(np.frombuffer(b"".join(encoded), np.uint8), starts, lengths)


def array_texts(array: pa.BinaryArray | pa.StringArray) -> tuple[I4, U1]:
    """Return the n + 1 offsets of a binary or string array and its data, without a copy."""
    _, offset_buffer, data = array.buffers()
    first, n = array.offset, len(array)
    # An array without elements may lack even the first offset.
    offsets = np.frombuffer(offset_buffer, np.int32) if n else np.zeros(first + 1, np.int32)
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return offsets[first : first + n + 1], buffer


def array_spans(array: pa.BinaryArray | pa.StringArray) -> Spans:
    """Return the spans of a binary or string array's values, without a copy; -1 for a null."""
    offsets, buffer = array_texts(array)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return Spans(buffer, offsets[:-1].astype(np.int64), lengths)


def _gather(spans: Spans) -> tuple[pa.Buffer | None, npt.NDArray[np.int32], pa.Buffer]:
    lengths = spans.lengths
    validity, total = None, int(lengths.sum(dtype=np.int64))
    if len(lengths) and lengths.min() < 0:
        missing = lengths < 0
        total += int(np.count_nonzero(missing))
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    data = pa.allocate_buffer(total)
    offsets = np.empty(len(spans) + 1, np.int32)
    target = np.frombuffer(data, np.uint8)
    kernel.active.gather(spans.buffer, spans.starts, lengths, offsets, target)
    return validity, offsets, data


def binary_array(spans: Spans) -> pa.BinaryArray:
    """Return the spans' bytes as an Arrow binary array.

    Nothing is copied if the buffer is settled and the spans are contiguous.
    """
    if spans.settled and len(spans) and spans.lengths.min() >= 0:
        ends = spans.starts + spans.lengths
        if (ends[:-1] == spans.starts[1:]).all():
            first = int(spans.starts[0])
            offsets = np.append(spans.starts, ends[-1:]) - first
            data = pa.py_buffer(spans.buffer).slice(first, int(ends[-1]) - first)
            return pa.Array.from_buffers(
                pa.binary(), len(spans), [None, pa.py_buffer(offsets.astype(np.int32)), data]
            )
    validity, offsets, data = _gather(spans)
    return pa.Array.from_buffers(pa.binary(), len(spans), [validity, pa.py_buffer(offsets), data])


_ARROW: Final = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}


def int_array(numbers: I4 | I8) -> pa.Array:
    """Return integers of 32 or 64 bits as an Arrow array, which shares their memory.

    `pa.array` loads pandas, if it is installed, to find out whether it was given something of it:
    0.2 s of the first task of a process.
    """
    own = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(_ARROW[own.dtype], len(own), [None, pa.py_buffer(own)])


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return n integers of 32 or 64 bits, none of them null, as `int_array` takes them."""
    kind = np.int32 if array.type.bit_width == 32 else np.int64
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, kind)
    return np.frombuffer(data, kind)[array.offset : array.offset + len(array)]


def string_array(spans: Spans) -> pa.StringArray:
    """Return the spans' bytes as an Arrow string array; invalid UTF-8 becomes U+FFFD.

    (Java's `new String(bytes, UTF_8)` and Python's `decode("utf-8", "replace")` do the same.)
    """
    validity, offsets, data = _gather(spans)
    return checked_strings(offsets, data, validity)


def checked_strings(
    offsets: npt.NDArray[np.int32], data: pa.Buffer, validity: pa.Buffer | None = None
) -> pa.StringArray:
    """Build a string array from its buffers, after replacing invalid UTF-8 in them."""
    n = len(offsets) - 1
    array = pa.Array.from_buffers(pa.string(), n, [validity, pa.py_buffer(offsets), data])
    raw = np.frombuffer(data, np.uint8)
    if kernel.active.is_ascii(raw):
        return array
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        pass
    repaired = pa.allocate_buffer(3 * len(raw))
    new_offsets = np.empty_like(offsets)
    used = kernel.active.repair_utf8(offsets, raw, new_offsets, np.frombuffer(repaired, np.uint8))
    buffers = [validity, pa.py_buffer(new_offsets), repaired.slice(0, used)]
    return pa.Array.from_buffers(pa.string(), n, buffers)


def join_texts(leads: Sequence[str], columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Join the texts of each row; a text follows its column's lead, unless it is null or empty.

    Args:
        leads: one for each column.
        columns: at most 8, each with n values.
    """
    encoded = [lead.encode() for lead in leads]
    parts = [array_texts(pc.fill_null(c, b"") if c.null_count else c) for c in columns]
    n = len(columns[0])
    room = n * sum(map(len, encoded)) + sum(int(at[-1]) - int(at[0]) for at, _ in parts)
    offsets, data = np.empty(n + 1, np.int32), pa.allocate_buffer(room)
    used = kernel.active.join_texts(
        b"".join(encoded),
        np.cumsum([len(lead) for lead in encoded], dtype=np.int32),
        np.stack([at for at, _ in parts]),
        tuple(held for _, held in parts),
        offsets,
        np.frombuffer(data, np.uint8),
    )
    buffers = [None, pa.py_buffer(offsets), data.slice(0, used)]
    return pa.Array.from_buffers(pa.binary(), n, buffers)
