"""Blocks of encoded records, as an executor makes them: without what only the store knows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.spans import U1
from tests.support.traffic import Traffic

__all__ = ["encoded", "encoded_traffic", "record_columns"]


def record_columns(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with `topic`, `queueId`, `body`, `properties` and `bornTimestamp` as RECORD_COLUMNS."""
    n = len(messages)
    columns = {}
    for name, kind in RECORD_COLUMNS.items():
        if name in ("topic", "queueId", "body", "properties", "bornTimestamp"):
            columns[name] = messages[name].cast(kind)
        else:
            value = {"bornHost": "127.0.0.1:1234", "storeHost": "0.0.0.0:0"}.get(name, 0)
            columns[name] = pa.repeat(pa.scalar(value, kind), n)
    return pa.RecordBatch.from_pydict(columns)


def encoded(messages: pa.RecordBatch) -> U1:
    """Encode such rows."""
    return np.array(encode_records(record_columns(messages)).data)


def encoded_traffic(traffic: Traffic) -> list[U1]:
    """Encode messages, a block for each of their batches."""
    return [encoded(batch) for batch in traffic.batches()]
