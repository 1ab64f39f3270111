"""Which of many places a test tries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["one_in"]

T = TypeVar("T")


def one_in(count: int, places: Sequence[T]) -> Sequence[T]:
    """Return one of `count` places. The first changes with the seed: many runs try them all."""
    return places[random.randrange(count) :: count]
