"""kill -9: promises 1, 2 and 3 (docs/reliability.md)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rmqstore_spark.writer.failpoints import NAMES
from tests.fault.claims import Claims
from tests.fault.life import SMALL, live, settle

pytestmark = pytest.mark.fault

_ROUNDS = 25


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_at_any_time_nothing_is_lost_or_doubled(tmp_path: Path, flush: str) -> None:
    claims = Claims()
    settings = (*SMALL, f"flushDiskType={flush}")
    for seed in range(_ROUNDS):
        ending = live(tmp_path / "store", claims, seed, settings=settings, kill_after_s=1.2)
        assert ending.code == -signal.SIGKILL, ending.errors
        if claims.operations and seed % 2:  # else it is the next life that recovers it
            settle(tmp_path / "store", settings)
            claims.check(tmp_path / "store")
    settle(tmp_path / "store", settings)
    claims.check(tmp_path / "store")
    assert claims.acknowledged > 0


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_a_place(tmp_path: Path, name: str) -> None:
    claims = Claims()
    if not name.startswith("topics."):  # those are made once, in the first life
        live(tmp_path / "store", claims, 0, operations=40, failpoint="put.after_write:5")
    killed = 0
    for times in (1, 2, 7):
        ending = live(tmp_path / "store", claims, times, operations=40, failpoint=f"{name}:{times}")
        assert ending.code in (0, -signal.SIGKILL), ending.errors
        killed += ending.code != 0
        settle(tmp_path / "store")
        claims.check(tmp_path / "store")
    assert killed, f"nothing gets to {name}"
    ending = live(tmp_path / "store", claims, 1, operations=5)
    assert ending.code == 0, ending.errors
    claims.check(tmp_path / "store")
