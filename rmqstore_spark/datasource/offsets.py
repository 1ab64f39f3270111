"""A stream's offsets, in the form of its checkpoint.

    {"version": 2, "stores": {"broker-a": "6d2a...32 hex digits"}, "leftOut": [],
     "queues": {"broker-a": {"TopicTest": "0:23@4567#0f1e2d3c4b5a 1:0..7@990#5a4b3c2d1e0f"}}}

Each queue has its number, the next offset to read, and what tells the message before that: its
physical offset (-1 if unknown) and its fingerprint (left out if unknown). As long as only the
micro-batch that ends here has read from the queue, the offset at which that micro-batch began is
included, as in `0..7`. Brokers and topics are sorted by name, queues by number, because Spark
compares offsets as text. The queues of a topic form one text: a query passes its offsets around
several times a second, and with a thousand queues parsing that many numbers would be most of what
an idle query costs.

`stores` holds the ids of those stores that have one, so that a store is found again under another
name. `leftOut` names the stores that the query did not read any more and was allowed to leave out.
Version 1 had neither, and no fingerprints.

The begin makes a restart exact. Spark checkpoints the end of a micro-batch before it runs it, but
for the first one it checkpoints no start. A queue that is found while the stream runs has no start
either. Such a batch must be planned again from where it began, whatever the store, the options or
`initialOffset` say by then. Physical offset and fingerprint reveal that a queue was cut, or deleted
and recreated, since it was read, or that the store is another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from rmqstore_spark.errors import RmqStoreError

__all__ = [
    "Mark",
    "Offsets",
    "QueueKey",
    "StoresOf",
    "as_start",
    "decode_offsets",
    "decode_stores",
    "encode_offsets",
    "packed_by_topic",
]

_VERSION = 2
_OLDER = 1
_UNKNOWN = -1
_MARK = re.compile(
    r"([0-9]{1,10}):(?:([0-9]{1,19})\.\.)?([0-9]{1,19})@(-1|[0-9]{1,19})(?:#([0-9a-f]{12}))?",
    re.ASCII,
)

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
        fingerprint: of the record before it (`reader.before.fingerprint`), "" if unknown.
    """

    next: int
    last_physical: int = _UNKNOWN
    begin: int | None = None
    fingerprint: str = ""


Offsets = dict[QueueKey, Mark]


@dataclass(frozen=True)
class StoresOf:
    """The stores of a checkpoint's offsets.

    Args:
        ids: the ids of stores by broker name; others have none.
        left_out: the names of those that the query was allowed to leave out.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


def encode_offsets(
    offsets: Mapping[QueueKey, Mark], stores: StoresOf = StoresOf()
) -> dict[str, Any]:
    """Encode offsets in the checkpoint's form, in its fixed order."""
    return {
        "version": _VERSION,
        "stores": dict(sorted(stores.ids.items())),
        "leftOut": sorted(stores.left_out),
        "queues": packed_by_topic(offsets, _mark_text),
    }


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
    if stored.get("version") not in (_OLDER, _VERSION):
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
        raise _damaged(stored, error) from None
    return offsets


def decode_stores(stored: Mapping[str, Any]) -> StoresOf:
    """Decode what offsets say of their stores.

    Raises:
        RmqStoreError: it is damaged.
    """
    ids, left_out = stored.get("stores", {}), stored.get("leftOut", [])
    if not isinstance(ids, dict) or not isinstance(left_out, list):
        raise _damaged(stored, "stores and leftOut must be an object and a list")
    if not all(isinstance(text, str) for text in [*ids.values(), *left_out]):
        raise _damaged(stored, "stores and leftOut must hold texts")
    return StoresOf(ids, frozenset(left_out))


def _damaged(stored: Mapping[str, Any], cause: object) -> RmqStoreError:
    return RmqStoreError(
        f"The checkpoint's offsets are damaged ({cause}): {str(stored)[:200]}. Start the "
        "stream with another checkpointLocation and explicit startingOffsets."
    )


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
    fingerprint = f"#{mark.fingerprint}" if mark.fingerprint else ""
    return f"{begin}{mark.next}@{mark.last_physical}{fingerprint}"


def _read_mark(text: str) -> tuple[int, Mark]:
    match = _MARK.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid offset of a queue: {text!r}")
    queue_id, begin, after, physical, fingerprint = match.groups()
    first = None if begin is None else int(begin)
    return int(queue_id), Mark(int(after), int(physical), first, fingerprint or "")
