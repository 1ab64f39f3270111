"""kill -9: promises 1, 2 and 3 (docs/reliability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.rounds.writer import PLACES, at_places, kills

pytestmark = pytest.mark.fault

_ROUNDS = 12


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_at_any_time_nothing_is_lost_or_doubled(tmp_path: Path, flush: str) -> None:
    tally = kills(tmp_path, _ROUNDS, flush)
    tally.require_none()
    assert tally.acknowledged > 0
    assert tally.faults == _ROUNDS


@pytest.mark.parametrize("name", PLACES)
def test_killed_at_a_place(tmp_path: Path, name: str) -> None:
    at_places(tmp_path, iter([name]), counts=(1,)).require_none()
