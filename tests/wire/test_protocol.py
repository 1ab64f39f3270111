from __future__ import annotations

import struct

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.wire.codec import MessageError
from rmqstore_spark.wire.protocol import Acknowledgement, Code, piece_lengths, pieces_head


def test_no_code_is_one_of_rocketmqs() -> None:
    assert not set(Code) & set(map(int, RequestCode))
    assert Code.CREATE_TOPIC.text == "create-topic"


@given(st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.booleans())))
def test_pieces(pieces: list[tuple[int, bool]]) -> None:
    lengths = np.array([length for length, _ in pieces], np.int64)
    last = np.array([is_last for _, is_last in pieces], np.bool_)
    head = pieces_head(lengths, last)
    assert len(head) == 4 + 4 * len(pieces)
    assert int.from_bytes(head[:4], "little") == len(pieces)
    found_lengths, found_last = piece_lengths(head[4:])
    assert list(zip(found_lengths.tolist(), found_last.tolist(), strict=True)) == pieces


@given(st.binary(max_size=64).map(lambda data: data[: len(data) & ~3]))
def test_any_words_are_lengths_that_fit(words: bytes) -> None:
    lengths, last = piece_lengths(words)
    assert len(lengths) == len(last) == len(words) // 4
    assert all(0 <= length < 1 << 31 for length in lengths.tolist())


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
