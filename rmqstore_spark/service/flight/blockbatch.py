"""The block in a record batch as it travels: Arrow's IPC message, read without a copy.

A batch of BLOCK_SCHEMA has one row with one binary value. Its flatbuffer is read here, and not by
Arrow, for two reasons: Arrow would unpack a compressed body whatever its size, and its value could
not be written to, so that the store would have to copy it. Every position is checked before it is
used (Message.fbs and Schema.fbs of the Arrow format; flatbuffers' binary format).
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.wire.codec import MessageError

__all__ = ["block_in", "read_schema"]

_RECORD_BATCH: Final = 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # of Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # of RecordBatch
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_MOST_SCHEMA: Final = 64 << 10


def read_schema(header: memoryview) -> pa.Schema:
    """The schema that a message holds.

    Raises:
        MessageError: it holds none.
    """
    if len(header) > _MOST_SCHEMA:
        raise MessageError(f"a schema of {len(header)} bytes")
    message = b"".join((_CONTINUATION, struct.pack("<i", len(header)), header))
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MessageError(str(error)[:200]) from None


def block_in(header: memoryview, body: U1) -> U1:
    """The one value of a batch.

    Args:
        header: its flatbuffer.
        body: uint8[bytes], its buffers.

    Returns:
        uint8[bytes], part of `body`.

    Raises:
        MessageError: the batch is another one, is compressed, or does not hold together.
    """
    flat = _Flat(header)
    message = flat.root()
    if flat.uint8(message, _HEADER_TYPE) != _RECORD_BATCH:
        raise MessageError("a message that is not a record batch")
    if flat.int64(message, _BODY_LENGTH) != len(body):
        raise MessageError("a body of another size than its batch says")
    batch = flat.table(message, _HEADER)
    if flat.field(batch, _COMPRESSION):
        raise MessageError("it is compressed; send blocks uncompressed")
    rows = flat.int64(batch, _LENGTH)
    nodes, buffers = flat.pairs(batch, _NODES), flat.pairs(batch, _BUFFERS)
    if rows != 1 or len(nodes) != 1 or len(buffers) != 3:
        raise MessageError(f"a batch of {rows} rows and {len(nodes)} columns; it has one of each")
    if nodes[0] != (1, 0):
        raise MessageError("a null, or a column of another length")
    _, offsets, values = (_part(body, *place) for place in buffers)
    if len(offsets) < 8:
        raise MessageError("a value without offsets")
    begin, end = struct.unpack("<ii", offsets[:8].tobytes())
    if not 0 <= begin <= end <= len(values):
        raise MessageError("offsets that lead out of the data")
    return values[begin:end]


def _part(body: U1, offset: int, length: int) -> U1:
    if offset < 0 or length < 0 or offset + length > len(body):
        raise MessageError("a buffer that leads out of the body")
    return body[offset : offset + length]


class _Flat:
    """A flatbuffer; positions are those of tables, 0 for what is not there."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def root(self) -> int:
        return self._unpack("<I", 0)

    def field(self, table: int, number: int) -> int:
        """Where a field of a table is."""
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
        """A vector of structs of two int64, at most four of them."""
        at = self.field(table, number)
        if not at:
            return []
        at += self._unpack("<I", at)
        count = self._unpack("<I", at)
        return [
            (self._unpack("<q", at + 4 + 16 * nth), self._unpack("<q", at + 12 + 16 * nth))
            for nth in range(min(count, 4))
        ]

    def _unpack(self, form: str, at: int) -> int:
        if at < 0:
            raise MessageError("a position before its message")
        try:
            value: int = struct.unpack_from(form, self._data, at)[0]
        except struct.error:
            raise MessageError("a position past the end of its message") from None
        return value
