"""Killed at, or failed by, the k-th call of the kernel: promises 1, 2, 3 and 5."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.claims import Claims
from tests.fault.rounds.life import settle
from tests.fault.rounds.writer import CALLS, EIO, by_calls, injected
from tests.fault.traces import why_no_strace

PUT_OFF = (" yet: ", "could not be used: ")
"""Warnings after which the process continues, for nothing that it promised depended on the call."""

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace()),
]


@pytest.mark.parametrize(
    ("call", "step"),
    [("fdatasync", 8), ("fsync", 13), ("pwrite64", 29), ("pwritev2", 9), ("rename", 6)],
)
def test_killed_at_a_call(tmp_path: Path, call: str, step: int) -> None:
    tally = by_calls(tmp_path, call, step)
    tally.require_none()
    assert tally.faults > 0


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("k", [1, 8, 14])
def test_after_a_failed_call_nothing_is_acknowledged(tmp_path: Path, call: str, k: int) -> None:
    claims = Claims()
    store = tmp_path / "store"
    ending, fired = injected(store, claims, k, call, EIO)
    assert fired
    assert "Traceback" not in ending.errors
    assert "resumed" not in ending.lines
    assert "Input/output error" in ending.refusal + ending.errors
    assert ending.code != 0 or any(each in ending.errors for each in PUT_OFF)
    settle(store)
    claims.check(store)
