"""Reads a split of any kind. This is what a task runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqstore_spark.reader.keys.read import read_key_split
from rmqstore_spark.reader.rows.read import read_log_split, read_queue_split
from rmqstore_spark.reader.rows.scan import read_scan_split
from rmqstore_spark.reader.rows.splits import KeySplit, LogSplit, QueueSplit, Split

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import ReadOptions
    from rmqstore_spark.reader.store import Store


def read_split(store: Store, split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split (see `plan`).

    Raises:
        SegmentExpiredError: messages of the split have expired, and `fail_on_data_loss` is set.
        CorruptStoreError: the log is damaged, and the mode is FAILFAST.
    """
    if isinstance(split, QueueSplit):
        return read_queue_split(store, split, options)
    if isinstance(split, LogSplit):
        return read_log_split(store, split, options)
    if isinstance(split, KeySplit):
        return read_key_split(store, split, options)
    return read_scan_split(store, split, options)
