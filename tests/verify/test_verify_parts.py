"""Parts of the verification by themselves, each against what it is a quick way of doing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.record.delayed import DELAY_LEVELS, delays
from rmqstore_spark.verify.findings import Coverage, Flaws
from rmqstore_spark.verify.log_batch import TopicNumbers, read_batches
from tests.support.messages.spans import spans_of


@given(st.lists(st.lists(st.text(max_size=12), max_size=20), max_size=5))
def test_topics_keep_their_numbers(batches: list[list[str]]) -> None:
    table = TopicNumbers()
    numbers: dict[str, int] = {}
    for batch in batches:
        codes = table.codes(spans_of(batch)).tolist()
        assert [table.names[code] for code in codes] == batch
        for name, code in zip(batch, codes, strict=True):
            assert numbers.setdefault(name, code) == code


def test_topics_that_end_alike_are_told_apart() -> None:
    table = TopicNumbers()
    names = ["%RETRY%consumer_1", "%DLQQQ%consumer_1", "consumer_1"]
    for _ in range(2):
        codes = table.codes(spans_of(names))
        assert [table.names[code] for code in codes] == names


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10))), st.integers(0, 70))
def test_what_is_not_covered(ranges: list[tuple[int, int]], end: int) -> None:
    halves = Coverage(), Coverage()
    covered = set()
    for number, (start, length) in enumerate(sorted(ranges)):
        halves[number % 2].add(7, start, start + length)
        covered |= set(range(start, start + length))
    halves[0].merge(halves[1])
    missing = [n for start, stop in halves[0].missing(7, 0, end) for n in range(start, stop)]
    assert missing == [n for n in range(end) if n not in covered]
    assert list(halves[0].missing(8, 0, end)) == ([(0, end)] if end else [])


def test_single_numbers_are_covered_as_ranges() -> None:
    coverage = Coverage()
    coverage.add_numbers(np.array([1, 1, 1, 4, 4]), np.array([5, 6, 9, 10, 11]))
    assert list(coverage.missing(1, 5, 11)) == [(7, 9), (10, 11)]
    assert list(coverage.missing(4, 0, 12)) == [(0, 10)]


def test_too_many_ranges_are_forgotten_and_looked_at_again() -> None:
    coverage = Coverage()
    coverage.add_numbers(np.zeros(20_000, np.int32), np.arange(20_000) * 2)
    missing = list(coverage.missing(0, 0, 40_000))
    assert missing[-1][1] == 40_000
    assert len(missing) < 5_000


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=5))
def test_flaws_hold_their_places(steps: list[tuple[int, int]]) -> None:
    stretches, at = [], 0
    for gap, length in steps:
        stretches.append((at + gap, at + gap + length))
        at += gap + length
    places = np.arange(-1, at + 2)
    held = Flaws(stretches[::-1]).hold(places)
    assert held.tolist() == [any(a <= p < b for a, b in stretches) for p in places.tolist()]


@given(st.lists(st.integers(1, 1 << 24), min_size=1, max_size=40))
def test_batches_are_bounded_and_hold_all(sizes: list[int]) -> None:
    rows = np.arange(len(sizes))
    parts = list(read_batches(rows, np.array(sizes, np.int32)))
    assert np.concatenate(parts).tolist() == rows.tolist()
    for part in parts:
        assert len(part) == 1 or sum(sizes[row] for row in part) <= 16 << 20


def test_delay_levels_are_read_as_a_broker_does() -> None:
    assert delays("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    assert len(delays(DELAY_LEVELS)) == 18
    for wrong in ("5", "s", "-1s", "1w"):
        with pytest.raises(ValueError, match="not a delay"):
            delays(wrong)
