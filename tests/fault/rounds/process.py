"""Shared by the processes that these tests start and kill.

    python -m tests.fault.rounds.NAME STORE NUMBER NOW SEED [--mutant] [--goes-back] [key=value ...]

NUMBER is the first unused message number, NOW the time of the process's clock in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Given", "MovingClock", "given", "say"]


@dataclass(frozen=True)
class Given:
    """What a process is told.

    Attributes:
        store: the store directory.
        number: the first unused message number.
        now: the time of its clock in milliseconds.
        drawn: what it does next.
        settings: of the store's configuration.
        goes_back: whether its clock goes back, too.
    """

    store: str
    number: int
    now: int
    drawn: random.Random
    settings: dict[str, str]
    goes_back: bool


def given(mutate: Callable[[], None] = lambda: None) -> Given:
    """Read the command line.

    Args:
        mutate: breaks the store, if that is asked for.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("number", type=int)
    parser.add_argument("now", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--mutant", action="store_true")
    parser.add_argument("--goes-back", action="store_true")
    told = parser.parse_args()
    if told.mutant:
        mutate()
    settings = dict(pair.split("=", 1) for pair in told.settings)
    drawn = random.Random(told.seed)
    return Given(told.store, told.number, told.now, drawn, settings, told.goes_back)


def say(*words: object) -> None:
    """Write a line, at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


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
