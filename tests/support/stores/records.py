"""Records of the golden stores as Arrow batches, and as the bytes that RocketMQ wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore_spark.layout.record.encode import RECORD_COLUMNS
from tests.support.stores.golden import RecordReport

__all__ = ["log_files", "record_batch", "store_kwargs", "stored_bytes"]


def record_batch(records: Sequence[RecordReport]) -> pa.RecordBatch:
    """What `encode_records` takes, for records as RocketMQ lists them."""
    fields = {
        "topic": "topic",
        "queueId": "queue_id",
        "queueOffset": "queue_offset",
        "physicalOffset": "physical_offset",
        "flag": "flag",
        "sysFlag": "sys_flag",
        "bornTimestamp": "born_timestamp",
        "bornHost": "born_host",
        "storeTimestamp": "store_timestamp",
        "storeHost": "store_host",
        "reconsumeTimes": "reconsume_times",
        "preparedTransactionOffset": "prepared_transaction_offset",
        "body": "body",
        "properties": "properties_raw",
    }
    arrays = [
        pa.array([getattr(r, fields[name]) for r in records], kind)
        for name, kind in RECORD_COLUMNS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(RECORD_COLUMNS))


def commitlog_folders(golden: Path) -> list[Path]:
    """Folders of the plain CommitLog of a golden store."""
    paths = json.loads((golden / "meta.json").read_text()).get("storePathCommitLog")
    if paths:
        return [golden / "store" / name for name in paths.split(",")]
    return [golden / "store" / "commitlog"]


def store_kwargs(golden: Path) -> dict[str, Any]:
    """What `Store.open` needs besides the path."""
    folders = commitlog_folders(golden)
    return {"commitlog_paths": [str(f) for f in folders]} if len(folders) > 1 else {}


def log_files(golden: Path) -> Iterator[tuple[int, Path, int]]:
    """Start, path and bytes before each record, of the files of a store's log, ascending."""
    plain = [p for folder in commitlog_folders(golden) for p in folder.glob("*")]
    dledger = list(golden.glob("store/dledger-*/data/*"))
    for path in sorted(plain + dledger, key=lambda p: p.name):
        yield int(path.name), path, 48 if path in dledger else 0


def stored_bytes(golden: Path) -> Callable[[RecordReport], bytes]:
    """Give a function that looks a record's bytes up in the log."""
    files = {start: path.read_bytes() for start, path, _ in log_files(golden)}

    def look_up(record: RecordReport) -> bytes:
        start = max(s for s in files if s <= record.physical_offset)
        at = record.physical_offset - start
        return files[start][at : at + record.store_size]

    return look_up
