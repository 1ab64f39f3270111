"""The power is cut: promises 1, 2 and 3 (docs/reliability.md), on an ext4 of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.power import why_no_loop_mounts
from tests.fault.rounds.writer import power_cuts

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts()),
]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path, flush: str) -> None:
    tally = power_cuts(tmp_path, 8, flush)
    tally.require_none()
    assert tally.acknowledged > 0


@pytest.mark.parametrize(
    ("flush", "mutant"),
    [
        ("SYNC_FLUSH", "acknowledge-before-flush"),
        ("SYNC_FLUSH", "no-fdatasync"),
        ("ASYNC_FLUSH", "no-fdatasync"),
    ],
)
def test_a_writer_that_breaks_promise_1_is_found_out(
    tmp_path: Path, flush: str, mutant: str
) -> None:
    tally = power_cuts(tmp_path, 8, flush, mutant=mutant, commits=0.0)
    assert tally.lost > 0
