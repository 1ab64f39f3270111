"""Crowds of clients at a real broker, a part of each: nobody is refused, and everybody arrives.

How few writes and notices that takes is in tests/broker/test_gathering.py; `python -m
tests.fault.crowds` lets all of them come, and prints the figures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fault.crowds import CROWDS, crowded, run_crowd

pytestmark = pytest.mark.fault


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.__name__)
def test_a_crowd_is_served_and_keeps_nobody_out(
    tmp_path: Path, crowd: Callable[[str, float], Awaitable[list[str]]]
) -> None:
    with crowded(tmp_path) as (address, pid):
        found = run_crowd(crowd.__name__, address, pid, 0.2)
    assert found.failed == []
    assert found.sends > 1
