"""Reads and writes record batches in Arrow's IPC format, without copying their bytes.

A batch of BLOCK_SCHEMA has one row with one binary value. Its flatbuffer is read here instead of by
Arrow, for two reasons: Arrow would decompress a compressed body whatever its size, and its value
would be read-only, so that the store would have to copy it. Every position is checked before it is
used (Message.fbs and Schema.fbs of the Arrow format; flatbuffers' binary format).

A batch of RANGES_SCHEMA is written with Arrow's flatbuffer of a batch without bytes, whose lengths
are then set: Arrow would copy the bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.wire.codec import MessageError
from rmqstore_spark.wire.protocol import RANGES_SCHEMA

__all__ = ["block_span", "ranges_message", "read_schema"]

_RECORD_BATCH: Final = 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # fields of RecordBatch
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_MOST_SCHEMA: Final = 64 << 10
_MOST_BATCH: Final = 4 << 10


def read_schema(header: memoryview) -> pa.Schema:
    """Read the schema that a message holds.

    Raises:
        MessageError: it holds no schema.
    """
    if len(header) > _MOST_SCHEMA:
        raise MessageError(f"a schema of {len(header)} bytes")
    message = b"".join((_CONTINUATION, struct.pack("<i", len(header)), header))
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MessageError(str(error)[:200]) from None


def block_span(header: memoryview, body: memoryview) -> tuple[int, int]:
    """Return where the only value of a batch begins and ends in its body.

    Args:
        header: the batch's flatbuffer.
        body: its buffers.

    Raises:
        MessageError: the batch is not one of BLOCK_SCHEMA, is compressed, or is inconsistent.
    """
    if len(header) > _MOST_BATCH:
        raise MessageError(f"a batch with a header of {len(header)} bytes")
    body_size, places = _layout(bytes(header))
    if body_size != len(body):
        raise MessageError("a body whose size differs from that in its batch")
    for offset, length in places:
        if offset < 0 or length < 0 or offset + length > len(body):
            raise MessageError("a buffer outside the body")
    _, (offsets_at, offsets_size), (values_at, values_size) = places
    if offsets_size < 8:
        raise MessageError("a value without offsets")
    begin, end = struct.unpack_from("<ii", body, offsets_at)
    if not 0 <= begin <= end <= values_size:
        raise MessageError("offsets outside the data")
    return values_at + begin, values_at + end


@lru_cache(maxsize=64)  # blocks of one size have the same header
def _layout(header: bytes) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the size of a batch's body, and the offsets and sizes of its three buffers."""
    flat = _Flat(memoryview(header))
    message = flat.root()
    if flat.uint8(message, _HEADER_TYPE) != _RECORD_BATCH:
        raise MessageError("a message that is not a record batch")
    batch = flat.table(message, _HEADER)
    if flat.field(batch, _COMPRESSION):
        raise MessageError("it is compressed; send blocks uncompressed")
    rows = flat.int64(batch, _LENGTH)
    nodes, buffers = flat.pairs(batch, _NODES), flat.pairs(batch, _BUFFERS)
    if rows != 1 or len(nodes) != 1 or len(buffers) != 3:
        raise MessageError(
            f"a batch of {rows} rows and {len(nodes)} columns; expected 1 row and 1 column"
        )
    if nodes[0] != (1, 0):
        raise MessageError("a null, or a column of another length")
    return flat.int64(message, _BODY_LENGTH), tuple(buffers)


def ranges_message(
    data: U1, lengths: npt.NDArray[np.int64], last: npt.NDArray[np.bool_]
) -> tuple[bytes, list[bytes | memoryview]]:
    """Encode a batch of RANGES_SCHEMA.

    Args:
        data: uint8[bytes], the contiguous bytes of all ranges.
        lengths: the length of each.
        last: whether each is the last piece of its range.

    Returns:
        Its flatbuffer, and the parts of its body.
    """
    count = len(lengths)
    bounds = np.zeros(count + 1, "<i4")
    np.cumsum(lengths, out=bounds[1:])
    size = int(bounds[-1])
    padding = bytes(-size % 8)
    empty = pa.RecordBatch.from_arrays(
        [pa.array([b""] * count, pa.binary()), pa.array(last)], schema=RANGES_SCHEMA
    )
    message = pa.ipc.read_message(empty.serialize())
    header = bytearray(message.metadata.to_pybytes())
    flat = _Flat(memoryview(header))
    root = flat.root()
    buffers = flat.pairs_at(flat.table(root, _HEADER), _BUFFERS)
    offsets_size, bits = -(-4 * (count + 1) // 8) * 8, -(-count // 64) * 8
    added = size + len(padding)
    struct.pack_into("<q", header, flat.field(root, _BODY_LENGTH), offsets_size + added + bits)
    places = ((0, 0), (0, 4 * (count + 1)), (offsets_size, size), (offsets_size + added, 0))
    for nth, place in enumerate((*places, (offsets_size + added, -(-count // 8)))):
        struct.pack_into("<qq", header, buffers + 16 * nth, *place)
    first = bounds.tobytes().ljust(offsets_size, b"\0")
    packed = np.packbits(last, bitorder="little").tobytes().ljust(bits, b"\0")
    return bytes(header), [first, memoryview(data[:size]), padding + packed]  # type: ignore[arg-type]


class _Flat:
    """A flatbuffer. Tables are named by their position; 0 stands for a missing field."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def root(self) -> int:
        return self._unpack("<I", 0)

    def field(self, table: int, number: int) -> int:
        """Return the position of a field of a table, or 0."""
        vtable = table - self._unpack("<i", table)
        if 4 + 2 * number >= self._unpack("<H", vtable):
            return 0
        offset = self._unpack("<H", vtable + 4 + 2 * number)
        return table + offset if offset else 0

    def uint8(self, table: int, number: int) -> int:
        at = self.field(table, number)
        return self._unpack("<B", at) if at else 0

    def int64(self, table: int, number: int) -> int:
        at = self.field(table, number)
        return self._unpack("<q", at) if at else 0

    def table(self, table: int, number: int) -> int:
        at = self.field(table, number)
        if not at:
            raise MessageError("a message without its header")
        return at + self._unpack("<I", at)

    def pairs(self, table: int, number: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two int64, at most four of them."""
        at = self.pairs_at(table, number)
        count = self._unpack("<I", at - 4) if at else 0
        return [
            (self._unpack("<q", at + 16 * nth), self._unpack("<q", at + 8 + 16 * nth))
            for nth in range(min(count, 4))
        ]

    def pairs_at(self, table: int, number: int) -> int:
        """Return the position of a vector's first struct, which follows the vector's length."""
        at = self.field(table, number)
        return at + self._unpack("<I", at) + 4 if at else 0

    def _unpack(self, form: str, at: int) -> int:
        if at < 0:
            raise MessageError("a position before its message")
        try:
            value: int = struct.unpack_from(form, self._data, at)[0]
        except struct.error:
            raise MessageError("a position past the end of its message") from None
        return value
