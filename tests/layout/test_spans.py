"""Spans of a buffer."""

from __future__ import annotations

import numpy as np

from rmqstore_spark.layout.spans import Spans, text_pool


def test_the_rows_with_a_zero_byte() -> None:
    texts = ["", "a", "\0", "", "b\0", "bc", "\0d", ""]
    assert text_pool(texts).with_zeros().tolist() == [2, 4, 6]
    assert text_pool(["a", "", "bc"]).with_zeros().tolist() == []
    assert text_pool([]).with_zeros().tolist() == []
    buffer = np.frombuffer(b"ab\0cd", np.uint8)
    starts, lengths = np.array([3, 1, 0, 2]), np.array([2, 2, 2, 0], np.int32)
    assert Spans(buffer, starts, lengths).with_zeros().tolist() == [1]
