"""How long and how often something is measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

__all__ = ["ROUNDS", "count_of", "in_turns", "middle", "seconds_of"]

_PART: Final = float(os.environ.get("BENCH_CLIENTS_PART", "1"))
"""Part of the messages and of the time of a whole run, to try the benchmark."""
ROUNDS: Final = 3
"""How often something is measured, unless a benchmark needs more."""
_LEAST_SECONDS: Final = 1.0
_LEAST_COUNT: Final = 2_000

_Found = TypeVar("_Found")


def count_of(count: int) -> int:
    """Return how many messages to use instead of so many in a whole run."""
    return max(min(count, _LEAST_COUNT), int(count * _PART))


def seconds_of(seconds: float) -> float:
    """Return how long to measure instead of so long in a whole run."""
    return max(_LEAST_SECONDS, seconds * _PART)


def in_turns(*ways: Callable[[], _Found], rounds: int = ROUNDS) -> tuple[list[_Found], ...]:
    """Measure in several ways; they take turns, so that the machine's mood hits all alike.

    Args:
        ways: each measures once.
        rounds: of a whole run.

    Returns:
        What came out of each way.
    """
    found: tuple[list[_Found], ...] = tuple([] for _ in ways)
    numbers = range(len(ways))
    for number in range(max(1, round(rounds * _PART))):
        for at in numbers if number % 2 == 0 else reversed(numbers):
            found[at].append(ways[at]())
    return found


def middle(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)
