"""Finds the oldest delayed message that still waits."""

from __future__ import annotations

from collections.abc import Mapping

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC


def oldest_undelivered(
    queues: ConsumeQueues, levels: int, offsets: Mapping[int, int]
) -> int | None:
    """Return the physical offset of the oldest delayed message that is not delivered.

    Args:
        queues: the store's queues.
        levels: how many delay levels there are.
        offsets: the offset of the next message to deliver, by level.

    Returns:
        None if no message waits.
    """
    places = list[int]()
    for level in range(1, levels + 1):
        least = queues.min_offset(SCHEDULE_TOPIC, level - 1)
        at, end = max(offsets.get(level, 0), least), queues.max_offset(SCHEDULE_TOPIC, level - 1)
        if at > end:  # no progress that the store can have made: it tells nothing
            at = least
        if at < end:
            entry = queues.read(SCHEDULE_TOPIC, level - 1, at, 1)
            places += entry["physicalOffset"].tolist()
    return min(places, default=None)
