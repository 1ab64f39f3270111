"""A stream's offsets, in the form of its checkpoint.

    {"version": 1, "queues": {"broker-a": {"TopicTest": "0:23@4567 1:0..7@990"}}}

Each queue has its number, the next offset to read, and the physical offset of the entry before that
(-1 if unknown). As long as only the micro-batch that ends here has read from the queue, the offset
at which that micro-batch began is included, as in `0..7`. Brokers and topics are sorted by name,
queues by number, because Spark compares offsets as text. The queues of a topic form one text: a
query passes its offsets around several times a second, and with a thousand queues parsing that many
numbers would be most of what an idle query costs.

The begin makes a restart exact. Spark checkpoints the end of a micro-batch before it runs it, but
for the first one it checkpoints no start. A queue that is found while the stream runs has no start
either. Such a batch must be planned again from where it began, whatever the store, the options or
`initialOffset` say by then. The physical offset reveals that a queue was cut, or deleted and
recreated, since it was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rmqstore_spark.errors import RmqStoreError

__all__ = [
    "Mark",
    "Offsets",
    "QueueKey",
    "as_start",
    "decode_offsets",
    "encode_offsets",
    "packed_by_topic",
]

_VERSION = 1
_UNKNOWN = -1
_MARK = re.compile(r"([0-9]{1,10}):(?:([0-9]{1,19})\.\.)?([0-9]{1,19})@(-1|[0-9]{1,19})", re.ASCII)

T = TypeVar("T")


class QueueKey(NamedTuple):
    """A queue of one of several stores. Keys sort as the checkpoint does."""

    broker: str
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} of {self.broker}"


class Mark(NamedTuple):
    """The progress of a queue.

    Args:
        next: the next queue offset to read.
        last_physical: physical offset of the entry before it, -1 if unknown.
        begin: where the first micro-batch of this queue began, None once a later one has read from
            the queue.
    """

    next: int
    last_physical: int = _UNKNOWN
    begin: int | None = None


Offsets = dict[QueueKey, Mark]


def encode_offsets(offsets: Mapping[QueueKey, Mark]) -> dict[str, Any]:
    """Encode offsets in the checkpoint's form, in its fixed order."""
    return {"version": _VERSION, "queues": packed_by_topic(offsets, _mark_text)}


def packed_by_topic(
    values: Mapping[QueueKey, T], text: Callable[[T], str]
) -> dict[str, dict[str, str]]:
    """Encode a value per queue as `{broker: {topic: "0:... 1:..."}}`, sorted."""
    parts: dict[str, dict[str, list[str]]] = {}
    for key in sorted(values):
        queues = parts.setdefault(key.broker, {}).setdefault(key.topic, [])
        queues.append(f"{key.queue_id}:{text(values[key])}")
    return {
        broker: {topic: " ".join(queues) for topic, queues in topics.items()}
        for broker, topics in parts.items()
    }


def decode_offsets(stored: Mapping[str, Any]) -> Offsets:
    """Decode offsets.

    Raises:
        RmqStoreError: they are damaged, or another source or another version wrote them.
    """
    if stored.get("version") != _VERSION:
        raise RmqStoreError(
            "The checkpoint's offsets were written by another version of the rmqstore source: "
            f"{str(stored)[:200]}. Start the stream with that version, or with another "
            "checkpointLocation."
        )
    offsets: Offsets = {}
    try:
        for broker, topics in stored["queues"].items():
            for topic, queues in topics.items():
                for text in queues.split(" "):
                    queue_id, mark = _read_mark(text)
                    offsets[QueueKey(broker, topic, queue_id)] = mark
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RmqStoreError(
            f"The checkpoint's offsets are damaged ({error}): {str(stored)[:200]}. Start the "
            "stream with another checkpointLocation and explicit startingOffsets."
        ) from None
    return offsets


def as_start(offsets: Offsets) -> Offsets:
    """Make the end of one micro-batch the start of the next.

    Drops where the first one began, except for queues from which it read nothing.
    """
    return {
        key: mark if mark.begin in (None, mark.next) else mark._replace(begin=None)
        for key, mark in offsets.items()
    }


def _mark_text(mark: Mark) -> str:
    begin = "" if mark.begin is None else f"{mark.begin}.."
    return f"{begin}{mark.next}@{mark.last_physical}"


def _read_mark(text: str) -> tuple[int, Mark]:
    match = _MARK.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid offset of a queue: {text!r}")
    queue_id, begin, after, physical = match.groups()
    return int(queue_id), Mark(int(after), int(physical), None if begin is None else int(begin))
