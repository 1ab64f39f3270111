"""Convert pieces of work to JSON, and count the rows that a plan covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rmqstore_spark.datasource.sources import partition_of
from rmqstore_spark.datasource.sources.source import SourcePartition
from rmqstore_spark.pipelines.parquet.tally import Tally
from rmqstore_spark.reader.options import (
    KeySplit,
    LogSplit,
    QueueRange,
    QueueSplit,
    ScanSplit,
    Split,
)

_KINDS: Final[dict[str, type[Split]]] = {
    kind.__name__: kind for kind in (KeySplit, LogSplit, QueueSplit, ScanSplit)
}


def to_json(piece: SourcePartition) -> dict[str, Any]:
    """Convert a piece to JSON."""
    splits = [[type(split).__name__, _fields(split)] for split in piece.splits]
    return {**piece.to_json(), "splits": splits}


def _fields(split: Split) -> dict[str, Any]:
    fields = asdict(split)
    if isinstance(split, ScanSplit) and split.topics is not None:
        fields["topics"] = sorted(split.topics)
    return fields


def from_json(stored: Mapping[str, Any], plan: str) -> SourcePartition:
    """Create a piece from JSON.

    Args:
        plan: a name that all pieces of one run, and of no other run, have in common.
    """
    splits = [_KINDS[kind](**_arguments(fields)) for kind, fields in stored["splits"]]
    return partition_of(stored, plan, splits)


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _field(name, value) for name, value in fields.items()}


def _field(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return QueueRange(**value)
    if isinstance(value, list):
        # A tuple, because splits must be hashable.
        items = (_field("", item) for item in value)
        return frozenset(items) if name == "topics" else tuple(items)
    return value


def planned_rows(pieces: Iterable[SourcePartition]) -> Tally | None:
    """Count the rows of each queue that a plan covers, before filters.

    Returns:
        None for a store without queues: its rows are unknown before they are read.
    """
    ranges: set[tuple[str, QueueRange]] = set()
    for piece in pieces:
        for split in piece.splits:
            if isinstance(split, ScanSplit):
                return None
            # Several log splits can share a range; queue splits have distinct ranges.
            found = (split.range,) if isinstance(split, QueueSplit) else split.ranges
            ranges.update((str(piece.broker_name), each) for each in found)
    tally = Tally()
    for broker, each in ranges:
        tally[broker, each.topic, each.queue_id] += each.count
    return tally
