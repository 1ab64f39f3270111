"""The levels of a broker's delayed messages, as text and as times.

Upstream: DefaultMessageStore's `messageDelayLevel`, ScheduleMessageService.parseDelayLevel.
"""

from __future__ import annotations

from typing import Final

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default `messageDelayLevel` of a broker."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays(levels: str) -> tuple[int, ...]:
    """Parse a broker's `messageDelayLevel` into the milliseconds of each level.

    Raises:
        ValueError: the text is not a valid `messageDelayLevel`.
    """
    found = []
    for level in levels.split():
        if level[-1] not in _UNIT_MS or not level[:-1].isdecimal():
            raise ValueError(f"{level!r} is not a delay such as 10s, 5m, 2h or 1d")
        found.append(int(level[:-1]) * _UNIT_MS[level[-1]])
    return tuple(found)
