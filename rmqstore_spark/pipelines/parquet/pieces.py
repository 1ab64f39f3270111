"""Convert pieces of work to JSON, and count the rows that a plan covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.datasource.partitions import AnyPartition, PulledPartition, StorePartition
from rmqstore_spark.datasource.pulled.spec import BrokerSpec
from rmqstore_spark.datasource.spec import StoreSpec
from rmqstore_spark.pipelines.parquet.tally import Tally
from rmqstore_spark.reader.rows.splits import (
    KeySplit,
    LogSplit,
    QueueRange,
    QueueSplit,
    ScanSplit,
    Split,
)
from rmqstore_spark.remoting.access.identity_files import IdentityFiles

__all__ = ["from_json", "planned_rows", "to_json"]

_KINDS: Final[dict[str, type[Split]]] = {
    kind.__name__: kind for kind in (KeySplit, LogSplit, QueueSplit, ScanSplit)
}


def to_json(piece: AnyPartition) -> dict[str, Any]:
    """Convert a piece to JSON."""
    splits = [[type(split).__name__, _fields(split)] for split in piece.splits]
    if isinstance(piece, PulledPartition):
        return {"broker": asdict(piece.broker), "splits": splits}
    return {"store": asdict(piece.store), "splits": splits}


def _fields(split: Split) -> dict[str, Any]:
    fields = asdict(split)
    if isinstance(split, ScanSplit) and split.topics is not None:
        fields["topics"] = sorted(split.topics)
    return fields


def from_json(stored: Mapping[str, Any], plan: str) -> AnyPartition:
    """Create a piece from JSON.

    Args:
        plan: a name that all pieces of one run, and of no other run, have in common.
    """
    splits = [_KINDS[kind](**_arguments(fields)) for kind, fields in stored["splits"]]
    if "broker" in stored:
        return PulledPartition(plan, _broker(**stored["broker"]), splits)
    return StorePartition(plan, StoreSpec(**_arguments(stored["store"])), splits)


def _broker(
    addresses: Sequence[Any],
    name_servers: Sequence[str],
    identity: Mapping[str, Any],
    **others: Any,
) -> BrokerSpec:
    listed, has_master = addresses
    return BrokerSpec(
        addresses=Addresses(tuple(listed), has_master),
        name_servers=tuple(name_servers),
        identity=IdentityFiles(**identity),
        **others,
    )


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _field(name, value) for name, value in fields.items()}


def _field(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return QueueRange(**value)
    if isinstance(value, list):
        # A tuple, because splits and stores must be hashable.
        items = (_field("", item) for item in value)
        return frozenset(items) if name == "topics" else tuple(items)
    return value


def planned_rows(pieces: Iterable[AnyPartition]) -> Tally | None:
    """Count the rows of each queue that a plan covers, before filters.

    Returns:
        None for a store without queues: its rows are unknown before they are read.
    """
    ranges: set[tuple[str, QueueRange]] = set()
    for piece in pieces:
        of = piece.broker if isinstance(piece, PulledPartition) else piece.store
        for split in piece.splits:
            if isinstance(split, ScanSplit):
                return None
            # Several log splits can share a range; queue splits have distinct ranges.
            found = (split.range,) if isinstance(split, QueueSplit) else split.ranges
            ranges.update((str(of.broker_name), each) for each in found)
    tally = Tally()
    for broker, each in ranges:
        tally[broker, each.topic, each.queue_id] += each.count
    return tally
