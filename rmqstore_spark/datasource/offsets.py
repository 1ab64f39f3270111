"""A stream's offsets, as they stand in its checkpoint.

    {"version": 1, "queues": {"broker-a": {"TopicTest": {"0": [23, 4567], "1": [7, 990, 0]}}}}

For each queue: the offset to read next, the physical offset of the entry before it (-1 where none
is known), and, as long as nothing of the queue was read but in the micro-batch that ends here, the
offset at which that micro-batch began it. Brokers and topics are sorted by name, queues by number:
Spark compares offsets as text.

The third number is what makes a restart exact. Spark checkpoints the end of a micro-batch before it
runs it, but for the first one no start; and a queue that is found while the stream runs has no
start either. Such a batch must be planned again from where it began, whatever the store, the
options or `initialOffset` say by then. The physical offset tells a queue that was cut, or deleted
and made anew, from the one that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqstore_spark.errors import RmqStoreError

__all__ = ["Mark", "Offsets", "QueueKey", "advance", "decode_offsets", "encode_offsets"]

_VERSION = 1
_UNKNOWN = -1


class QueueKey(NamedTuple):
    """A queue among several stores. Keys sort as the checkpoint does."""

    broker: str
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} of {self.broker}"


class Mark(NamedTuple):
    """How far a queue has been read.

    Args:
        next: queue offset to read next.
        last_physical: physical offset of the entry before it, -1 where none is known.
        begin: where the first micro-batch of this queue began, None once a later one has read on.
    """

    next: int
    last_physical: int = _UNKNOWN
    begin: int | None = None


Offsets = dict[QueueKey, Mark]


def encode_offsets(offsets: Mapping[QueueKey, Mark]) -> dict[str, Any]:
    """Bring offsets into the checkpoint's form, in its fixed order."""
    queues: dict[str, dict[str, dict[str, list[int]]]] = {}
    for key in sorted(offsets):
        mark = offsets[key]
        numbers = [mark.next, mark.last_physical]
        if mark.begin is not None:
            numbers.append(mark.begin)
        queues.setdefault(key.broker, {}).setdefault(key.topic, {})[str(key.queue_id)] = numbers
    return {"version": _VERSION, "queues": queues}


def decode_offsets(stored: Mapping[str, Any]) -> Offsets:
    """Read offsets back.

    Raises:
        RmqStoreError: they were not written by this source, or by a later version of it.
    """
    if stored.get("version") != _VERSION:
        raise RmqStoreError(
            "The checkpoint's offsets are not of this version of the rmqstore source: "
            f"{str(stored)[:200]}. Start the stream with the version that wrote them, or with "
            "another checkpointLocation."
        )
    offsets: Offsets = {}
    try:
        for broker, topics in stored["queues"].items():
            for topic, queues in topics.items():
                for queue_id, numbers in queues.items():
                    offsets[QueueKey(broker, topic, int(queue_id))] = _mark(numbers)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RmqStoreError(
            f"The checkpoint's offsets are damaged ({error}): {str(stored)[:200]}. Start the "
            "stream with another checkpointLocation and explicit startingOffsets."
        ) from None
    return offsets


def advance(mark: Mark, to: int, last_physical: int) -> Mark:
    """Move a queue's mark to the end of a new micro-batch.

    Args:
        mark: where the micro-batch starts.
        to: where it ends.
        last_physical: physical offset of the entry before `to`.
    """
    if to == mark.next:
        return mark
    return Mark(to, last_physical, mark.begin if mark.begin == mark.next else None)


def _mark(numbers: Any) -> Mark:
    if not 2 <= len(numbers) <= 3 or any(type(number) is not int for number in numbers):
        raise ValueError(f"{numbers!r} is no offset")
    return Mark(*numbers)
