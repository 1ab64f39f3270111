"""Which records have a key, by RocketMQ's own account of a golden store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import ReadOptions
from tests.support.stores.expected import queue_key
from tests.support.stores.golden import RecordReport, load_queues, load_records
from tests.support.stores.records import store_kwargs

__all__ = [
    "IDENTITY",
    "PLACE",
    "asked",
    "assert_complete",
    "every_key",
    "has_key",
    "identities",
    "indexed",
    "keyed",
    "places",
    "popular",
    "reopened",
    "row_has_key",
    "with_key",
]

IDENTITY = ReadOptions(columns=("topic", "queueId", "queueOffset"))
PLACE = ReadOptions(columns=("physicalOffset",))

_ROLLBACK = 0xC


def indexed(record: RecordReport) -> bool:
    """Whether a broker puts a record's keys into an index at all."""
    return record.sys_flag & _ROLLBACK != _ROLLBACK


def has_key(record: RecordReport, key: str) -> bool:
    """Whether a key is the record's UNIQ_KEY, or one of its KEYS."""
    keys = record.properties.get("KEYS", "").split(" ")
    return bool(key) and (key == record.properties.get("UNIQ_KEY") or key in keys)


def row_has_key(row: dict[str, Any], keys: frozenset[str]) -> bool:
    """The same of a row (`expected.expected_rows`), for any of some keys."""
    return row["uniqKey"] in keys or not keys.isdisjoint(row["keys"] or ())


def with_key(records: list[RecordReport], topic: str, key: str, end: int = 1 << 62) -> list[int]:
    """Where the log has records of a topic that an index would hold under a key."""
    return sorted(
        r.physical_offset
        for r in records
        if r.topic == topic and has_key(r, key) and indexed(r) and r.physical_offset < end
    )


def asked(folder: Path) -> list[tuple[str, str]]:
    """The topics and keys that RocketMQ was asked for."""
    return [(report.topic, report.key) for report in load_queues(folder).keys]


def every_key(records: list[RecordReport]) -> list[tuple[str, str]]:
    """The topics and keys that there are."""
    return sorted(_counted(records))


def popular(folder: Path) -> tuple[str, str]:
    """The topic and key that most records have."""
    return _counted(load_records(folder)).most_common(1)[0][0]


def _counted(records: list[RecordReport]) -> Counter[tuple[str, str]]:
    return Counter((r.topic, key) for r in records for key in _keys(r))


def _keys(record: RecordReport) -> set[str]:
    """All keys for which `has_key` holds."""
    properties = record.properties
    return {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}


def reopened(golden: Path) -> Store:
    """Open a golden store, or a copy of one."""
    return Store.open(golden / "store", **store_kwargs(golden))


def places(table: pa.Table) -> list[int]:
    """The column physicalOffset."""
    found: list[int] = table["physicalOffset"].to_pylist()
    return found


def assert_complete(
    store: Store,
    records: list[RecordReport],
    keys: list[tuple[str, str]],
    options: ReadOptions = PLACE,
) -> None:
    """A store must find just the records that have these keys, ascending."""
    assert keys
    end, held = store.scan_end(), dict[tuple[str, str], list[int]]()
    for r in records:
        if indexed(r) and r.physical_offset < end:
            for key in _keys(r):
                held.setdefault((r.topic, key), []).append(r.physical_offset)
    for topic, key in keys:
        found = places(query_by_key(store, topic, key, options=options))
        assert found == sorted(held.get((topic, key), ()))


def identities(batches: Iterable[pa.RecordBatch]) -> list[tuple[str, int, int]]:
    """The columns topic, queueId and queueOffset."""
    return [queue_key(row) for batch in batches for row in batch.to_pylist()]


def keyed(keys: list[str]) -> pa.RecordBatch:
    """Messages of the topic T with these KEYS."""
    properties = [f"KEYS\x01{key}".encode() if key else b"" for key in keys]
    return pa.RecordBatch.from_pydict({"topic": ["T"] * len(keys), "properties": properties})
