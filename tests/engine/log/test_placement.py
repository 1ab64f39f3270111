from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.log.placement import Placement, TooLargeError, place

SIZE = 1000


def one_by_one(units: list[list[int]], begin: int) -> tuple[list[int], list[int], int]:
    """Where RocketMQ puts messages and batches, and blanks: it looks at one of them at a time."""
    offsets, blanks, at = [], [], begin
    for sizes in units:
        left = SIZE - at % SIZE
        if sum(sizes) + 8 > left:
            blanks.append(at)
            at += left
        for size in sizes:
            offsets.append(at)
            at += size
    return offsets, blanks, at


SIZES = st.lists(st.integers(1, SIZE - 8), max_size=40)
UNITS = st.lists(
    st.lists(st.integers(1, SIZE // 3), min_size=1, max_size=9).filter(
        lambda sizes: sum(sizes) <= SIZE - 8
    ),
    max_size=20,
)
# The log ends at a segment's start, or before the 8 bytes that are always left.
ENDS = st.builds(lambda n, at: n * SIZE + at, st.integers(0, 9), st.integers(0, SIZE - 8))


def assert_placed(placed: Placement, units: list[list[int]], begin: int) -> None:
    sizes = [size for unit in units for size in unit]
    offsets, blanks, end = one_by_one(units, begin)
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


@given(SIZES, ENDS)
def test_records_go_where_rocketmq_puts_them(sizes: list[int], begin: int) -> None:
    assert_placed(place(np.array(sizes, np.int32), begin, SIZE), [[size] for size in sizes], begin)


@given(UNITS, ENDS)
def test_batches_go_where_rocketmq_puts_them(units: list[list[int]], begin: int) -> None:
    sizes = np.array([size for unit in units for size in unit], np.int32)
    unit_ends = np.cumsum([len(unit) for unit in units], dtype=np.int64)
    assert_placed(place(sizes, begin, SIZE, unit_ends), units, begin)


def test_a_record_must_leave_room_for_a_blank() -> None:
    assert place(np.array([SIZE - 8], np.int32), 0, SIZE).end == SIZE - 8
    with pytest.raises(TooLargeError, match="a record has 993 bytes"):
        place(np.array([1, SIZE - 7], np.int32), 0, SIZE)


def test_a_batch_must_leave_room_for_a_blank() -> None:
    sizes = np.array([10, 500, SIZE - 508], np.int32)
    assert place(sizes, 500, SIZE, np.array([1, 3])).end == 2 * SIZE - 8
    sizes[1] += 1
    with pytest.raises(TooLargeError, match="a batch of messages has 993 bytes"):
        place(sizes, 500, SIZE, np.array([1, 3]))
    with pytest.raises(ValueError, match="the units do not end with the last of 3 records"):
        place(sizes, 500, SIZE, np.array([1, 2]))
