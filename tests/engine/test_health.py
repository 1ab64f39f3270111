"""Work that is done at intervals."""

from __future__ import annotations

import threading
import time

import pytest

from rmqstore_spark.engine.health import Health, Periodic


@pytest.mark.parametrize(("longest", "rests"), [(200, 0.2), (60_000, 0.45)])
def test_work_that_takes_long_rests_longer(longest: int, rests: float) -> None:
    """Nine times as long as it took, at most as long as may be."""
    begins: list[float] = []
    ends: list[float] = []
    is_done = threading.Event()

    def work() -> None:
        begins.append(time.monotonic())
        while time.monotonic() < begins[-1] + 0.05:
            threading.Event().wait(0.001)
        ends.append(time.monotonic())
        if len(ends) == 2:
            is_done.set()

    periodic = Periodic("rmqstore-test", 1, work, Health("s"), longest_ms=longest)
    try:
        assert is_done.wait(60)
    finally:
        periodic.close()
    assert begins[1] - ends[0] >= rests
