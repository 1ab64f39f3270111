"""Replication under kill -9: nothing that a SYNC_MASTER acknowledges is lost with its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.rounds.replication import replication_kills

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.mark.parametrize("expires", [False, True], ids=["keeping", "expiring"])
def test_master_and_follower_killed_nothing_acknowledged_is_lost(
    tmp_path: Path, *, expires: bool
) -> None:
    tally = replication_kills(tmp_path, 3, expires=expires)
    tally.require_none()
    assert tally.acknowledged > 0
