"""Blocks of encoded records, as an executor makes them: without what only the store knows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.errors import BlockError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record import block
from rmqstore_spark.layout.record import block as packed
from rmqstore_spark.layout.record.delayed import schedule
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.half import hold
from rmqstore_spark.layout.spans import U1
from tests.support.messages.traffic import Traffic

__all__ = ["block_outcome", "encoded", "encoded_traffic", "record_columns"]


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


def block_outcome(
    module: ModuleType, data: U1, *, v6: bool, strict: bool, allowed: int = 0x70D
) -> Any:
    """All that one implementation returns for some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "active", module)
        try:
            found = (
                block.check_block(
                    data,
                    max_body=250,
                    store_host_v6=v6,
                    allowed_sys_flag=allowed,
                    max_rows=8,
                    digested=True,
                )
                if strict
                else block.read_block(data, max_rows=8)
            )
            if strict:
                packed.check_bodies(found)
            moved = schedule(found, (1_000, 5_000)) if strict and found.delayed else found
        except BlockError as error:
            return str(error), error.row, error.at, error.status
        entries, bounds = CONSUME_QUEUE.of_block(found, found.starts * 3)
        offsets = np.arange(len(found.routes), dtype=np.int64)
        numbers = block.number_rows(found.route_of, found.queued, offsets)
        hashes, rows = block.index_hashes(data, found.starts, found.sizes)
        columns = (
            found.starts, found.sizes, found.route_of, found.tags_code, found.queued, bounds,
            offsets, numbers, hashes, rows, np.array(found.compressed),
            np.array(found.delayed), moved.data, moved.tags_code, moved.route_of,
        )  # fmt: skip
        made = _stamp(data, found, v6), _held(found) if strict else None
        listed = [column.tolist() for column in columns]
        return found.routes, entries.tobytes(), made, found.sums, listed


def _held(found: block.Block) -> bytes | str:
    try:
        return hold(found, most_bytes=1 << 20).data.tobytes()
    except BlockError as error:
        return str(error)


def _stamp(data: U1, found: block.Block, v6: bool) -> bytes | str:
    copy = data.copy()
    host = bytes(range(20 if v6 else 8))
    try:
        block.stamp_records(copy, found.starts, -found.starts, found.starts, -5, host)
    except ValueError as error:
        return str(error)
    return copy.tobytes()
