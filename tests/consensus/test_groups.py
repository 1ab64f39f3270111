"""Groups of members with every fault that the simulator knows, and with one rule less.

`python -m tests.consensus` plays more of them.
"""

from __future__ import annotations

import os

import pytest

from tests.consensus import compiled, playing
from tests.consensus.mutations import MUTATIONS, SEEDS
from tests.consensus.runs import run

RUNS = int(os.environ.get("CONSENSUS_RUNS", "100000"))
PARTS = 50  # of the runs, so that processes can share them
PLAY = playing.play if compiled.lacking() else compiled.play


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_acknowledged_is_lost(part: int) -> None:
    played = PLAY(range(part, RUNS, PARTS))
    assert played.failed == []
    assert played.acknowledged >= 3 * played.runs  # the runs do something
    assert played.elections >= played.runs


@pytest.mark.parametrize(("name", "seed"), [(name, SEEDS[name][0]) for name in SEEDS])
def test_a_group_without_a_rule_is_found_out(name: str, seed: int) -> None:
    run(seed)
    with pytest.raises(AssertionError):
        MUTATIONS[name](seed)


def test_a_seed_plays_the_same_run_again() -> None:
    assert run(7) == run(7)
