"""What the processes have in common that work on a store in their own way, and are killed.

    python -m MODULE STORE NUMBER NOW SEED [key=value ...] [--mutant NAME] [--goes-back] ...

NUMBER is the first unused message number, NOW the time of the process's clock in milliseconds; 0:
it has the time. They say what they do, a line each; the first is `ready`. A mutant breaks a
promise on purpose: the rounds must notice.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.engine import StoreConfig, StoreWriter

JUMPS_BACK_MS: Final = (-300, -5_000, -900_000)
"""How far clocks go back."""


@dataclass(frozen=True)
class Told:
    """What a process is told.

    Attributes:
        number: the first unused message number.
        clock: of its store, if that does not have the time.
        drawn: what it does next.
        goes_back: whether its clock goes back, too.
        replay: first and count of a commit that is to be done again.
        operations: it closes the store after so many.
        commits: share of the operations.
    """

    number: int
    clock: MovingClock
    drawn: random.Random
    goes_back: bool
    replay: list[int]
    operations: int
    commits: float


def work(
    operate: Callable[[StoreWriter, Told], int | None],
    configure: Callable[..., StoreConfig],
    mutants: Mapping[str, Callable[[], object]],
) -> int:
    """Open the store that the command line names, and work until killed.

    Args:
        operate: works; what it returns is the exit code.
        configure: makes the configuration with the settings of the command line.
        mutants: break the store, by name.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("number", type=int)
    parser.add_argument("now", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--mutant", choices=sorted(mutants))
    parser.add_argument("--goes-back", action="store_true")
    parser.add_argument("--replay", type=int, nargs=2, default=[])
    parser.add_argument("--operations", type=int, default=1 << 30)
    parser.add_argument("--commits", type=float, default=0.3)
    given = parser.parse_args()
    if given.mutant:
        mutants[given.mutant]()
    told = Told(
        given.number, MovingClock(given.now), random.Random(given.seed), given.goes_back,
        given.replay, given.operations, given.commits,
    )  # fmt: skip
    if told.goes_back:
        told.clock.jump(told.drawn.choice((0, *JUMPS_BACK_MS)))  # while no process ran
    config = configure(**dict(pair.split("=", 1) for pair in given.settings))
    timed: dict[str, Any] = {"clock": told.clock} if given.now else {}
    with StoreWriter.open(given.store, config, **timed) as store:
        return operate(store, told) or 0


def say(*words: object) -> None:
    """Write a line, at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def replace(module: str, name: str, value: object) -> None:
    """Change the store: put another function or constant in the place of one."""
    *path, last = name.split(".")
    holder: Any = importlib.import_module(module)
    for part in path:
        holder = getattr(holder, part)
    assert hasattr(holder, last)
    setattr(holder, last, value)


class MovingClock:
    """A clock that moves on by itself, and that jumps. It says so before it does.

    Args:
        now: its time in milliseconds.
    """

    def __init__(self, now: int) -> None:
        self._lead = self._highest = now - time.monotonic_ns() // 1_000_000

    @property
    def behind_ms(self) -> int:
        """How far it went back."""
        return self._highest - self._lead

    def __call__(self) -> int:
        return self._lead + time.monotonic_ns() // 1_000_000

    def jump(self, ahead_ms: int) -> None:
        """Advance the clock by some milliseconds, or set it back if they are negative."""
        say("now", self() + ahead_ms)
        self._lead += ahead_ms
        self._highest = max(self._highest, self._lead)
