"""Record batches as they travel, against Arrow's own reading and writing of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.server.flight.blockbatch import block_span, ranges_message, read_schema
from rmqstore_spark.wire.codec import MessageError
from rmqstore_spark.wire.protocol import BLOCK_SCHEMA, RANGES_SCHEMA, block_batch

CONTINUATION = b"\xff\xff\xff\xff"


def message_of(batch: pa.RecordBatch, **options: Any) -> tuple[bytes, bytes]:
    """A batch's flatbuffer and body, as Arrow writes them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    message = reader.read_next_message()
    body = b"" if message.body is None else message.body.to_pybytes()
    return message.metadata.to_pybytes(), body


def encapsulated(header: bytes, body: bytes) -> bytes:
    padded = header.ljust(-(-len(header) // 8) * 8, b"\0")
    return CONTINUATION + struct.pack("<i", len(padded)) + padded + body


@given(st.binary(max_size=300))
def test_a_block_is_found_where_arrow_wrote_it(data: bytes) -> None:
    header, body = message_of(block_batch(data))
    begin, end = block_span(memoryview(header), memoryview(body))
    assert body[begin:end] == data


@pytest.mark.threat("Resource limits")
@given(st.binary(max_size=40), st.data())
def test_a_damaged_batch_is_refused_or_read_as_arrow_reads_it(data: bytes, draw: Any) -> None:
    header, body = message_of(block_batch(data))
    damaged = bytearray(header)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = draw.draw(st.integers(0, 255))
    try:
        begin, end = block_span(memoryview(bytes(damaged)), memoryview(body))
    except MessageError:
        return
    assert 0 <= begin <= end <= len(body)
    try:
        read = pa.ipc.read_record_batch(
            pa.ipc.read_message(pa.py_buffer(encapsulated(bytes(damaged), body))), BLOCK_SCHEMA
        )
        read.validate(full=True)
        values = read.column(0).to_pylist()
    except (pa.ArrowException, OSError, IndexError):
        return  # Arrow also looks at what a block does not need
    assert values == [body[begin:end]]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_refused_or_lie_within_the_body(header: bytes, body: bytes) -> None:
    try:
        begin, end = block_span(memoryview(header), memoryview(body))
    except MessageError:
        return
    assert 0 <= begin <= end <= len(body)


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_refused_and_not_unpacked(codec: str) -> None:
    header, body = message_of(block_batch(bytes(64 << 20)), compression=codec)
    assert len(body) < 1 << 20
    with pytest.raises(MessageError, match="compressed"):
        block_span(memoryview(header), memoryview(body))


@pytest.mark.parametrize("values", [[], [b"a", b"b"], [None]])
def test_other_rows_than_one_are_refused(values: list[bytes | None]) -> None:
    schema = pa.schema([pa.field("records", pa.binary())])
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=schema)
    header, body = message_of(batch)
    with pytest.raises(MessageError):
        block_span(memoryview(header), memoryview(body))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=200),
    st.randoms(use_true_random=False),
)
def test_ranges_are_read_by_arrow(pieces: list[tuple[int, bool]], random: Any) -> None:
    lengths = np.array([size for size, _ in pieces], np.int64)
    last = np.array([is_last for _, is_last in pieces], bool)
    data = np.frombuffer(random.randbytes(int(lengths.sum())), np.uint8)
    header, body = ranges_message(data, lengths, last)
    whole = encapsulated(header, b"".join(body))
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(whole)), RANGES_SCHEMA)
    batch.validate(full=True)
    ends = np.cumsum(lengths)
    expected = [bytes(data[end - size : end]) for size, end in zip(lengths, ends, strict=True)]
    assert batch.column("data").to_pylist() == expected
    assert batch.column("last").to_pylist() == last.tolist()


def test_a_schema_is_read_or_refused() -> None:
    header = pa.ipc.read_message(BLOCK_SCHEMA.serialize()).metadata.to_pybytes()
    assert read_schema(memoryview(header)).equals(BLOCK_SCHEMA)
    for wrong in (b"", b"\0" * 64, header[:20], bytes(1 << 20)):
        with pytest.raises(MessageError):
            read_schema(memoryview(wrong))
