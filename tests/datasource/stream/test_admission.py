from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.datasource.stream.catchup import rows_within, share

BACKLOGS = st.lists(st.integers(0, 10**12) | st.integers(0, 3), max_size=40)


@given(BACKLOGS, st.integers(1, 10**12) | st.integers(1, 60))
def test_shares(backlogs: list[int], limit: int) -> None:
    shares = share(backlogs, limit)
    waiting = sum(1 for backlog in backlogs if backlog)
    assert len(shares) == len(backlogs)
    assert all(0 <= part <= backlog for part, backlog in zip(shares, backlogs, strict=True))
    assert all(part >= 1 for part, backlog in zip(shares, backlogs, strict=True) if backlog)
    assert sum(shares) == min(sum(backlogs), max(limit, waiting))
    assert shares == share(backlogs, limit)


def test_shares_follow_the_backlogs() -> None:
    assert share([1000, 3000, 0], 100) == [25, 75, 0]
    assert share([1_000_000, 1], 100) == [99, 1]
    assert share([7, 7, 7], 5) == [2, 2, 1]
    assert share([5, 5, 5], 2) == [1, 1, 1]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(0, 10**7))
def test_rows_within(sizes: list[int], budget: int) -> None:
    count = rows_within(np.array(sizes, np.int32), budget)
    assert 1 <= count <= len(sizes)
    assert count == 1 or sum(sizes[:count]) <= budget
    assert count == len(sizes) or sum(sizes[: count + 1]) > budget
