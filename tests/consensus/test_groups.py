"""Groups of members with every fault that the simulator knows, and with one rule less."""

from __future__ import annotations

import os

import pytest

from tests.consensus.mutations import MUTATIONS
from tests.consensus.simulator import Checks, Simulator, Violation, run

RUNS = int(os.environ.get("CONSENSUS_RUNS", "100000"))
PARTS = 50  # of the runs, so that processes can share them


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_acknowledged_is_lost(part: int) -> None:
    acknowledged = elections = 0
    for seed in range(part, RUNS, PARTS):
        try:
            checks = run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += len(checks.acknowledged)
        elections += checks.elections
    assert acknowledged >= 4 * RUNS // PARTS  # the runs do something
    assert elections >= RUNS // PARTS


SEEDS = {"CommitsEarlierTerms": 1}
"""The first seeds that find each mutation."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_group_without_a_rule_is_found_out(name: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(SEEDS[name], SEEDS[name] + 20_000):
            MUTATIONS[name](seed)


def test_a_seed_plays_the_same_run_again() -> None:
    assert run(7) == run(7)
