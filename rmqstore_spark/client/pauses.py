"""How long a client waits before it tries again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0


def backoff() -> Iterator[float]:
    """Yield the seconds to wait before each retry: growing, and random, to spread clients out."""
    wait = _FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1.5)  # noqa: S311 - no secret depends on it
        wait = min(wait * 2, _LONGEST_WAIT)
