"""Compiled, the simulator plays what it plays in Python, and finds what it finds there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.consensus import compiled, playing
from tests.consensus.mutations import MUTATIONS, SEEDS

LACKING = compiled.lacking()
needs_compiler = pytest.mark.skipif(
    bool(LACKING), reason=f"{LACKING}: plain Python plays all runs of test_groups"
)

WITHOUT_MEMORY = """
from rmqstore_spark.consensus.actions import Save
from rmqstore_spark.consensus.member import GroupMember
from tests.consensus.runs import run

def forgetful(me, group, saved, *rest, **more):
    return GroupMember(me, group, saved or Save(0, None, is_voter=True), *rest, **more)

def end(seed):
    try:
        run(seed, forgetful)
    except AssertionError as error:
        return str(error)

print([end(seed) for seed in {}])
"""


@needs_compiler
@pytest.mark.slow
def test_the_same_seeds_play_the_same_runs() -> None:
    seeds = range(100_000, 100_400)
    assert compiled.play(seeds) == playing.play(seeds)


@needs_compiler
@pytest.mark.slow
def test_a_missing_rule_is_found_in_the_same_way() -> None:
    ends = []
    for seed in (seeds := SEEDS["VotesWithoutMemory"]):
        with pytest.raises(AssertionError) as found:
            MUTATIONS["VotesWithoutMemory"](seed)
        ends.append(str(found.value))
    assert ast.literal_eval(compiled.printed(WITHOUT_MEMORY.format(seeds))) == ends


def test_without_a_compiler_python_plays_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.consensus", "--compiled", "--seeds", "0:20"],
        cwd=compiled.ROOT, env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, last = done.stdout.splitlines()
    assert first.startswith("Plain Python plays")
    assert "there is no C compiler (no-such-compiler)" in first
    assert last.startswith("20 runs, 0 failed, ")
