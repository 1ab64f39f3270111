"""Find messages that an earlier backfill into the same table has written, or will write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from rmqstore_spark.pipelines.parquet import pieces
from rmqstore_spark.reader.options import QueueSplit, ScanSplit

_FILTERS: Final = ("tags", "keys")


class _Queue(NamedTuple):
    broker: str
    topic: str
    queue_id: int


def describe_overlap(plan: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Describe messages that two plans have in common; None if there are none.

    Two plans that choose by different tags or keys may read the same range.
    """
    chosen, others = _filters(plan), _filters(other)
    if chosen and others and chosen != others:
        return None
    if same_place(plan, other) and (_is_scan(plan) or _is_scan(other)):
        return "messages of the same log, whose queues are unknown"
    earlier = dict(_ranges(other))
    for queue, (start, end) in _ranges(plan):
        if queue in earlier and max(start, earlier[queue][0]) < min(end, earlier[queue][1]):
            first, last = earlier[queue]
            return f"{queue.topic}/{queue.queue_id} of {queue.broker} from {first} to {last - 1}"
    return None


def same_place(plan: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two plans read the stores of the same path or address."""
    return _place(plan) == _place(other)


def _filters(plan: Mapping[str, Any]) -> dict[str, str]:
    given = {name: str(plan["arguments"].get(name) or "").strip() for name in _FILTERS}
    return {name: text for name, text in given.items() if text not in ("", "*")}


def _place(plan: Mapping[str, Any]) -> list[Any]:
    return [plan["arguments"].get(name) for name in ("path", "endpoint", "namesrvAddr")]


def _is_scan(plan: Mapping[str, Any]) -> bool:
    return plan["rows"] is None


def _ranges(plan: Mapping[str, Any]) -> Iterator[tuple[_Queue, tuple[int, int]]]:
    """Yield the range of offsets of each queue. A plan has one, in parts or as a whole.

    A log without a ConsumeQueue has none: the offsets are unknown before it is read.
    """
    found: dict[_Queue, tuple[int, int]] = {}
    for stored in plan["pieces"]:
        piece = pieces.from_json(stored, "")
        for split in piece.splits:
            if isinstance(split, ScanSplit):
                continue
            for each in (split.range,) if isinstance(split, QueueSplit) else split.ranges:
                queue = _Queue(str(piece.broker_name), each.topic, each.queue_id)
                start, end = found.get(queue, (each.start, each.end))
                found[queue] = (min(start, each.start), max(end, each.end))
    yield from found.items()
