from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.files.systems.base import FileRange
from rmqstore_spark.files.systems.spans import RangeFiles, asked_together, plan_runs, slices_of_size

SPANS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 90)), max_size=40)


@given(SPANS, st.integers(0, 300), st.integers(0, 5), st.integers(1, 4000))
def test_runs_hold_every_range_at_its_position(
    spans: list[tuple[int, int]], max_gap: int, max_waste: int, window: int
) -> None:
    data = np.random.default_rng(0).integers(0, 256, 4000, np.uint8)
    offsets, lengths = np.array(spans, np.int64).reshape(-1, 2).T.copy()
    groups = offsets // window
    runs = plan_runs(offsets, lengths, groups, max_gap=max_gap, max_waste=max_waste)
    joined = np.concatenate(
        [data[:0]]
        + [
            data[at : at + size]
            for at, size in zip(runs.offsets.tolist(), runs.lengths.tolist(), strict=True)
        ]
    )
    for (offset, length), position in zip(spans, runs.positions.tolist(), strict=True):
        assert joined[position : position + length].tolist() == (
            data[offset : offset + length].tolist()
        )
    assert (np.diff(runs.offsets) > 0).all()
    assert set(runs.groups.tolist()) == set(groups.tolist())


@given(SPANS, st.integers(0, 300), st.integers(0, 5))
def test_no_more_is_read_than_allowed(
    spans: list[tuple[int, int]], max_gap: int, max_waste: int
) -> None:
    offsets, lengths = np.array(spans, np.int64).reshape(-1, 2).T.copy()
    runs = plan_runs(offsets, lengths, np.zeros_like(offsets), max_gap=max_gap, max_waste=max_waste)
    wanted = {at for offset, length in spans for at in range(offset, offset + length)}
    assert int(runs.lengths.sum()) - len(wanted) <= max_waste * int(lengths.sum())
    ends = runs.offsets + runs.lengths
    for begin, end in zip(runs.offsets.tolist(), ends.tolist(), strict=True):
        missing = [at for at in range(begin, end) if at not in wanted]
        streaks = np.split(np.array(missing), np.flatnonzero(np.diff(missing) > 1) + 1)
        assert all(len(streak) <= max_gap for streak in streaks)


def test_small_gaps_are_read_over_before_wide_ones() -> None:
    offsets = np.array([0, 20, 60, 71, 120], np.int64)
    lengths = np.full(5, 10, np.int64)
    runs = plan_runs(offsets, lengths, np.zeros_like(offsets), max_gap=100, max_waste=1)
    # Gaps of 10, 30, 1 and 39 bytes; 50 may be wasted: 1 + 10 + 30 fit, 39 more do not.
    assert runs.offsets.tolist() == [0, 120]
    assert runs.lengths.tolist() == [81, 10]


def test_ranges_that_touch_are_joined_whatever_the_limits() -> None:
    offsets = np.array([30, 0, 10, 10, 25], np.int64)
    lengths = np.array([5, 10, 20, 3, 2], np.int64)
    runs = plan_runs(offsets, lengths, np.zeros_like(offsets), max_gap=0, max_waste=0)
    assert runs.offsets.tolist() == [0]
    assert runs.lengths.tolist() == [35]
    assert runs.positions.tolist() == [30, 0, 10, 10, 25]


@given(st.lists(st.integers(0, 90), max_size=40), st.integers(1, 9), st.integers(1, 200))
def test_slices_hold_all_and_are_limited(sizes: list[int], rows: int, size: int) -> None:
    slices = list(slices_of_size(np.array(sizes, np.int32), rows=rows, size=size))
    assert [n for part in slices for n in range(part.start, part.stop)] == list(range(len(sizes)))
    for part in slices:
        assert part.stop - part.start <= rows
        assert part.stop - part.start == 1 or sum(sizes[part]) <= size


# ---- requests -----------------------------------------------------------------------------------

MIB = 1 << 20


class Remote(RangeFiles):
    """One file that is read by requests, and what was asked for together."""

    def __init__(self, size: int) -> None:
        self.data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
        self.asked: list[list[FileRange]] = []

    def _ask(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        self.asked.append(list(requests))
        return (self.data[offset : offset + length] for _, offset, length in requests)


def test_requests_that_are_made_together_are_limited() -> None:
    small = [FileRange("f", at, 10) for at in range(10_000)]
    assert [len(part) for part in asked_together(small)] == [4096, 4096, 1808]
    large = [FileRange("f", at, 8 * MIB) for at in range(9)]
    assert [len(part) for part in asked_together(large)] == [4, 4, 1]
    assert [one for part in asked_together(small + large) for one in part] == small + large


def test_a_long_range_is_cut_into_requests() -> None:
    files = Remote(42 * MIB)
    out = np.empty(40 * MIB, np.uint8)
    assert files.read_into("f", 5, out) == len(out)
    assert out.tobytes() == files.data[5 : 5 + len(out)]
    assert [[one.length for one in part] for part in files.asked] == [[8 * MIB] * 4, [8 * MIB]]
    assert files.read_into("f", 4 * MIB, out) == 38 * MIB
    assert out[: 38 * MIB].tobytes() == files.data[4 * MIB :]


@given(
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 200_000)), min_size=1, max_size=8),
    st.sampled_from([0, 1000, 700_000, 3 * MIB]),
)
def test_spans_are_read_up_to_the_end_of_the_file(steps: list[tuple[int, int]], size: int) -> None:
    gaps, sizes = np.array(steps, np.int64).T.copy()
    ends = np.cumsum(gaps + sizes)
    offsets, files = ends - sizes, Remote(size)
    out = np.zeros(int(sizes.sum()), np.uint8)
    count = int(np.count_nonzero(ends <= size))
    assert files.read_spans("f", offsets, sizes, out) == count
    begin = 0
    for at, length in zip(offsets[:count].tolist(), sizes[:count].tolist(), strict=True):
        assert out[begin : begin + length].tobytes() == files.data[at : at + length]
        begin += length
