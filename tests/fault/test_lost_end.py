"""The end of the log is damaged: promises 1 and 4 (docs/reliability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.rounds.lost_end import FORMS, lost_ends

pytestmark = pytest.mark.fault


def test_a_store_without_its_end_has_everything_or_says_what_it_misses(tmp_path: Path) -> None:
    tally = lost_ends(tmp_path, 2 * len(FORMS))
    tally.require_none()
    assert tally.faults > len(FORMS)
    assert tally.acknowledged > 0
