"""The power is cut: promises 1, 2 and 3 (docs/reliability.md), on an ext4 of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.claims import Claims
from tests.fault.life import SMALL, live, settle
from tests.fault.power import PoweredDisk, why_no_loop_mounts

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(why_no_loop_mounts()), reason=why_no_loop_mounts()),
]

_ROUNDS = 12
_LONGEST_LIFE_S = 1.5


def _rounds(
    folder: Path, rounds: int, flush: str, *, mutant: str = "", commits: float = 0.3
) -> Claims:
    claims = Claims()
    settings = (*SMALL, f"flushDiskType={flush}")
    with PoweredDisk(folder) as disk:
        store = disk.path / "store"
        for seed in range(rounds):
            live(
                store,
                claims,
                seed,
                settings=settings,
                kill_after_s=_LONGEST_LIFE_S,
                commits=commits,
                mutant=mutant,
            )
            disk.cut_power()
            if claims.operations:
                settle(store, settings)
                claims.check(store, lost_tail=flush == "ASYNC_FLUSH")
                claims.forget_lost(store)
    return claims


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path, flush: str) -> None:
    assert _rounds(tmp_path, _ROUNDS, flush).acknowledged > 0


@pytest.mark.parametrize("mutant", ["acknowledge-before-flush", "no-fdatasync"])
def test_a_writer_that_breaks_promise_1_is_found_out(tmp_path: Path, mutant: str) -> None:
    with pytest.raises(AssertionError, match="lost"):
        _rounds(tmp_path, 3 * _ROUNDS, "SYNC_FLUSH", mutant=mutant, commits=0.0)
