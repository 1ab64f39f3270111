from __future__ import annotations

import struct

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rmqstore_spark.wire.codec import MessageError
from rmqstore_spark.wire.failures import refusal_bytes, refused
from rmqstore_spark.wire.protocol import (
    BLOCK_SCHEMA,
    Acknowledgement,
    block_batch,
    block_number,
    number_bytes,
)


def test_a_block_is_sent_as_it_is() -> None:
    data = np.arange(100, dtype=np.uint8)
    batch = block_batch(data)
    batch.validate(full=True)
    assert batch.schema.equals(BLOCK_SCHEMA)
    assert batch.column(0).to_pylist() == [data.tobytes()]
    assert batch.column(0).buffers()[2].address == data.ctypes.data  # no copy


@given(st.integers(0, (1 << 63) - 1))
def test_numbers(number: int) -> None:
    assert block_number(number_bytes(number)) == number


def test_acknowledgements() -> None:
    for is_open in (False, True):
        plain = Acknowledgement(3, "MESSAGE_ILLEGAL", 0, "why, größer", is_open=is_open)
        assert Acknowledgement.from_bytes(plain.to_bytes()) == plain
        assert not plain.is_ok
    long = Acknowledgement(3, "MESSAGE_ILLEGAL", 0, "ä" * 10_000)
    assert Acknowledgement.from_bytes(long.to_bytes()).remark.startswith("ä" * 2048)
    offsets = np.array([1, 1 << 40]), np.array([2, 1 << 62])
    full = Acknowledgement.from_bytes(Acknowledgement(4, "PUT_OK", 2, "", *offsets).to_bytes())
    assert full.is_ok
    assert full.queue_offset is not None
    assert full.physical_offset is not None
    assert full.queue_offset.tolist() == offsets[0].tolist()
    assert full.physical_offset.tolist() == offsets[1].tolist()


@given(st.binary(max_size=100))
def test_what_is_no_acknowledgement_is_refused(data: bytes) -> None:
    whole = Acknowledgement(0, "PUT_OK", 1, "", np.zeros(1, np.int64), np.zeros(1, np.int64))
    right = whole.to_bytes()
    cut_off = right[: len(data) % len(right)]
    for wrong in (data, cut_off, right + data[:1] + b"x"):
        with pytest.raises(MessageError):
            Acknowledgement.from_bytes(wrong)


@pytest.mark.parametrize(
    "head",
    [(-1, 0, 0, 6, 0), (0, -1, 0, 6, 0), (0, 1 << 60, 1, 6, 0), (0, 0, 4, 6, 0), (0, 0, 0, 0, 6),
     (0, 0, 0, 7, 0), (0, 0, 0, 6, 1)],
)  # fmt: skip
def test_a_head_that_no_acknowledgement_has(head: tuple[int, ...]) -> None:
    ok = struct.pack("<qqBBH", 0, 0, 0, 6, 0) + b"PUT_OK"
    assert Acknowledgement.from_bytes(ok).is_ok
    with pytest.raises(MessageError):
        Acknowledgement.from_bytes(struct.pack("<qqBBH", *head) + b"PUT_OK")


def test_refusals() -> None:
    error = refused(refusal_bytes("SERVICE_NOT_AVAILABLE", "w" * 100_000))
    assert error is not None
    assert error.status == "SERVICE_NOT_AVAILABLE"
    assert refused(None) is refused(b"") is refused(b"nonsense") is refused(b'{"status":1}') is None
