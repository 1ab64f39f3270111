from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.log.placement import TooLargeError, place

SIZE = 1000


def one_by_one(sizes: list[int], begin: int) -> tuple[list[int], list[int], int]:
    """Where RocketMQ puts records, and blanks: it looks at one record at a time."""
    offsets, blanks, at = [], [], begin
    for size in sizes:
        left = SIZE - at % SIZE
        if size + 8 > left:
            blanks.append(at)
            at += left
        offsets.append(at)
        at += size
    return offsets, blanks, at


SIZES = st.lists(st.integers(1, SIZE - 8), max_size=40)
# The log ends at a segment's start, or before the 8 bytes that are always left.
ENDS = st.builds(lambda n, at: n * SIZE + at, st.integers(0, 9), st.integers(0, SIZE - 8))


@given(SIZES, ENDS)
def test_records_go_where_rocketmq_puts_them(sizes: list[int], begin: int) -> None:
    placed = place(np.array(sizes, np.int32), begin, SIZE)
    offsets, blanks, end = one_by_one(sizes, begin)
    assert placed.physical.tolist() == offsets
    assert (list(placed.blanks), placed.begin, placed.end) == (blanks, begin, end)
    rows = [row for piece in placed.pieces for row in range(piece.first, piece.last)]
    assert rows == list(range(len(sizes)))
    for piece in placed.pieces:
        assert piece.begin == offsets[piece.first]
        assert piece.end == offsets[piece.last - 1] + sizes[piece.last - 1]
        assert piece.begin // SIZE == (piece.end - 1) // SIZE
    written = {at // SIZE * SIZE for at in (*offsets, *blanks)}
    assert set(placed.segments) == written


def test_a_record_must_leave_room_for_a_blank() -> None:
    assert place(np.array([SIZE - 8], np.int32), 0, SIZE).end == SIZE - 8
    with pytest.raises(TooLargeError, match="a record has 993 bytes"):
        place(np.array([1, SIZE - 7], np.int32), 0, SIZE)
