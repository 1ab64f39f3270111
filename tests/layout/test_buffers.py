"""Copies of short stretches of a buffer, against slices of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.buffers import records_at, values_at, windows

PAIR = np.dtype([("size", ">i4"), ("kind", "u1")])


@given(st.binary(min_size=5, max_size=40), st.data())
def test_windows_are_slices(raw: bytes, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, len(raw)))
    starts = data.draw(st.lists(st.integers(0, len(raw) - width)))
    found = windows(np.frombuffer(raw, np.uint8), np.array(starts, np.int64), width)
    assert [row.tobytes() for row in found] == [raw[at : at + width] for at in starts]
    assert found.shape == (len(starts), width)


@given(st.binary(min_size=5, max_size=40), st.data())
def test_values_are_decoded_from_slices(raw: bytes, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(raw) - 5)))
    found = values_at(np.frombuffer(raw, np.uint8), PAIR, np.array(starts, np.int64))
    assert found["size"].tolist() == [
        int.from_bytes(raw[at : at + 4], "big", signed=True) for at in starts
    ]
    assert found["kind"].tolist() == [raw[at + 4] for at in starts]


@pytest.mark.parametrize("length", [0, 3, 8])
def test_a_window_past_the_end_is_refused(length: int) -> None:
    buffer = np.zeros(length, np.uint8)
    with pytest.raises(IndexError):
        windows(buffer, np.array([length - 3]), 4)
    assert windows(buffer, np.zeros(0, np.int64), 4).shape == (0, 4)


def test_records_past_the_end_are_zeros() -> None:
    raw = bytes(range(1, 9))
    found, inside = records_at(raw, PAIR, np.array([-1, 0, 3, 4]))
    assert inside.tolist() == [False, True, True, False]
    assert found["kind"].tolist() == [0, 5, 8, 0]
