"""Plays many groups on all cores: `python -m tests.consensus [--seeds FIRST:END] [--compiled]`.

It prints each seed whose run breaks a promise, and what all runs did together.
`tests.consensus.runs.run(seed)` plays one of them again. With --mutations it prints the first
seeds that find each mutation, as they stand in `mutations.SEEDS`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.consensus import compiled
from tests.consensus.mutations import MUTATIONS
from tests.consensus.playing import play

PART = 1000
FOUND = 3


def find(search: tuple[str, int]) -> tuple[str, list[int]]:
    """Return the first seeds that find a mutation, of as many as are tried."""
    name, tries = search
    return name, list(_finders(name, tries))


def _finders(name: str, tries: int) -> Iterator[int]:
    left = FOUND
    for seed in range(tries):
        try:
            MUTATIONS[name](seed)
        except AssertionError:
            yield seed
            left -= 1
            if not left:
                return


def main() -> int:
    """Run the command; return how many seeds failed, or mutations were not found."""
    arguments = argparse.ArgumentParser(prog="python -m tests.consensus")
    arguments.add_argument("--seeds", default="0:100000", metavar="FIRST:END")
    arguments.add_argument("--processes", type=int, help="how many play; default: one a core")
    arguments.add_argument("--compiled", action="store_true", help="play seeds faster, with mypyc")
    arguments.add_argument("--mutations", nargs="*", metavar="NAME")
    arguments.add_argument("--tries", type=int, default=40_000, help="seeds for a mutation")
    given = arguments.parse_args()
    player = play
    if given.compiled and (cause := compiled.lacking()):
        print(f"Plain Python plays, which takes more than three times as long: {cause}.")  # noqa: T201
    elif given.compiled:
        compiled.build()
        player = compiled.play
    with multiprocessing.Pool(given.processes) as pool:
        if given.mutations is not None:
            missed = 0
            searches = [(name, given.tries) for name in given.mutations or MUTATIONS]
            for name, seeds in pool.imap_unordered(find, searches):
                print(f'    "{name}": {tuple(seeds)},', flush=True)  # noqa: T201
                missed += not seeds
            return missed
        first, end = map(int, given.seeds.split(":"))
        parts = [range(at, min(at + PART, end)) for at in range(first, end, PART)]
        began = time.monotonic()
        totals = [0, 0, 0, 0]
        failures = 0
        for *counts, failed, _ in pool.imap_unordered(player, parts):
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            failures += len(failed)
            for seed, error in failed:
                print(f"seed {seed}: {error}", flush=True)  # noqa: T201
        seconds = time.monotonic() - began
        runs, elections, crashes, acknowledged = totals
        print(  # noqa: T201
            f"{runs} runs, {failures} failed, {elections} elections, {crashes} crashes, "
            f"{acknowledged} appends acknowledged, {seconds:.0f} s, {runs / seconds:.0f} runs/s"
        )
        return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
