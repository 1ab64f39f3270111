"""Rows that a golden store must give, made of RocketMQ's own reports alone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from tests.support.stores.golden import EntryReport, RecordReport, load_entries, load_records

__all__ = [
    "LOST_ENTRIES",
    "backed_rows",
    "expected_row",
    "expected_rows",
    "expected_scan",
    "log_rows",
    "queue_key",
]

Row = dict[str, Any]

# Queue entries that the crash wiped out: recovery restores them, a reader cannot.
LOST_ENTRIES = {"unclean-torn": ("TopicTest", 3, 155)}

# The log of these ends before what RocketMQ's walk lists last: a damaged record, or stale bytes.
_CUT = {"unclean-crc": 1292, "unclean-tail": 1293}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def _time(millis: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=millis)


def expected_row(record: RecordReport, entry: EntryReport | None = None) -> Row:
    """All columns but brokerName: the queue's words where an entry is given, else the record's."""
    keys = record.properties.get("KEYS")
    return {
        "topic": entry.topic if entry else record.topic,
        "queueId": entry.queue_id if entry else record.queue_id,
        "queueOffset": entry.offset if entry else record.queue_offset,
        "physicalOffset": record.physical_offset,
        "msgId": record.msg_id,
        "uniqKey": record.properties.get("UNIQ_KEY"),
        "tags": record.properties.get("TAGS"),
        "keys": None if keys is None else [key for key in keys.split(" ") if key],
        "body": record.plain_body,
        "properties": record.properties,
        "bornTimestamp": _time(record.born_timestamp),
        "bornHost": record.born_host,
        "storeTimestamp": _time(record.store_timestamp),
        "storeHost": record.store_host,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "storeSize": record.store_size,
    }


def expected_rows(golden: Path) -> list[Row]:
    """One row per queue entry that the log backs, by topic, queue and offset.

    (Of `trimmed-raw` RocketMQ lists entries from before its queues' clean-up, where it could not
    find the minimum offsets: there the records, each with its own queue and offset, are the rows.)
    """
    if golden.name == "trimmed-raw":
        return sorted(expected_scan(golden), key=queue_key)
    records = {r.physical_offset: r for r in load_records(golden)}
    begin = min(records, default=0)
    rows = [
        expected_row(records[entry.physical_offset], entry)
        for entries in load_entries(golden).values()
        for entry in entries
        if entry.physical_offset >= begin and entry.physical_offset in records
    ]
    return sorted(rows, key=queue_key)


def expected_scan(golden: Path) -> list[Row]:
    """One row per record, in the order of the log."""
    records = sorted(load_records(golden), key=lambda r: r.physical_offset)
    return [expected_row(record) for record in records]


def backed_rows(golden: Path) -> list[Row]:
    """Those of `expected_rows` that a reader can see without a recovery."""
    if golden.name == "unclean-nocq":
        return []
    rows = expected_rows(golden)
    if golden.name in LOST_ENTRIES:
        topic, queue_id, end = LOST_ENTRIES[golden.name]
        return [
            row
            for row in rows
            if (row["topic"], row["queueId"]) != (topic, queue_id) or row["queueOffset"] < end
        ]
    return rows


def log_rows(golden: Path) -> list[Row]:
    """Those of `expected_scan` that lie before the end of the intact log."""
    return expected_scan(golden)[: _CUT.get(golden.name)]


def queue_key(row: Row) -> tuple[str, int, int]:
    """What orders rows by queue."""
    return row["topic"], row["queueId"], row["queueOffset"]
