"""How often the replicas of a store are tried, and what their failures are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.wire.protocol import REPEATABLE

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0


def rounds(
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Yield as long as it is worth trying again, with growing pauses between."""
    give_up = clock() + seconds
    wait = _FIRST_WAIT
    while True:
        yield
        if clock() >= give_up:
            return
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def can_pass(error: Exception) -> bool:
    """Return whether a replica that failed can be right a little later."""
    if isinstance(error, RefusedError):
        return error.status in REPEATABLE
    return bool(getattr(error, "can_pass", False))


def told(failures: Mapping[str, Exception]) -> str:
    """List what is wrong with each replica."""
    return " ".join(f"{url}: {str(error).rstrip('.')}." for url, error in failures.items())
