"""Which of many places a test tries, and how many examples."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["examples", "one_in"]

T = TypeVar("T")


def one_in(count: int, places: Sequence[T]) -> Sequence[T]:
    """Return one of `count` places. The first changes with the seed: many runs try them all."""
    return places[random.randrange(count) :: count]


def examples(count: int) -> int:
    """Return how many examples a property test takes whose examples are long: more where asked."""
    return count * (25 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1)
