"""Transactions that wait in stores that a broker wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.produce.records import Origin, record_batch
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.transactions import find_transactions, named_halves
from tests.support.stores.golden import GOLDEN_NAMES, load_records

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@pytest.mark.parametrize("name", ["transactions", "live", "basic"])
def test_what_waits_is_what_no_op_message_names(
    name: str, open_store: Callable[[str], Store], golden: Callable[[str], Path]
) -> None:
    assert name in GOLDEN_NAMES
    records = load_records(golden(name))
    # What consumerOffset.json of `live` holds, read off by eye; others were never checked.
    done = 36 if name == "live" else 0
    ended = {int(record.body) for record in records if record.topic == OP}
    waiting = [
        record
        for record in records
        if record.topic == HALF and record.queue_offset >= done and record.queue_offset not in ended
    ]
    found = find_transactions(open_store(name)).waiting
    assert [(one.place.queue_offset, one.place.physical_offset) for one in found] == [
        (record.queue_offset, record.physical_offset) for record in waiting
    ]
    assert [(one.group, one.key, one.topic, one.queue_id) for one in found] == [
        tuple(
            record.properties.get(p, "") for p in ("PGROUP", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID")
        )
        for record in waiting
    ]
    assert bool(waiting) == (name != "basic")


def test_an_op_message_of_rocketmq_5_ends_several() -> None:
    bodies = [b"7", b"3,4,12", b"", b"x,5", b"-1", b"9" * 40]
    batch = record_batch(
        {"topic": pa.repeat(OP, len(bodies)), "body": pa.array(bodies, pa.binary())},
        Origin(0, "127.0.0.1:1"),
        "127.0.0.1:1",
    )
    made = encode_records(batch)
    records = decode_records(made.data, made.starts, made.sizes)
    assert named_halves(records) == [[7], [3, 4, 12], [], [5], [], []]
    assert np.all(records.status == 0)
