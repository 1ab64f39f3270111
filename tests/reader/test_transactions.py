"""Transactions that wait in stores that a broker wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.produce.records import Origin, record_batch
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.transactions import OpenHalves, find_transactions, named_halves
from tests.support.stores.golden import GOLDEN_NAMES, load_records
from tests.support.stores.storebuilder import StoreBuilder

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


def encoded(properties: dict[str, str]) -> bytes:
    """Properties as a record has them."""
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())


@settings(max_examples=60)
@given(
    steps=st.lists(st.integers(0, 9), min_size=1, max_size=25),
    at_once=st.sampled_from([1, 2, 3, 1 << 13]),
    data=st.data(),
)
def test_halves_that_are_read_part_by_part_are_those_that_wait(
    steps: list[int], at_once: int, data: st.DataObject
) -> None:
    """Half messages of four transactions, some again, and op messages that end one or several."""
    topics: list[str] = []
    bodies: list[bytes] = []
    keys: list[str] = []
    open_halves: dict[int, str] = {}
    for step in steps:
        if is_half := step < 6 or not open_halves:
            key = f"k{step % 4}" if step != 5 else ""
            number = topics.count(HALF)
            open_halves[number] = key or f"{number}"
            bodies.append(b"half")
        else:
            named = data.draw(st.lists(st.sampled_from([*open_halves]), min_size=1, max_size=2))
            ended = {open_halves[number] for number in named}
            open_halves = {n: key for n, key in open_halves.items() if key not in ended}
            key = ""
            bodies.append(",".join(map(str, named)).encode())
        topics.append(HALF if is_half else OP)
        keys.append(key)
    with tempfile.TemporaryDirectory() as folder:
        with StoreBuilder(Path(folder)) as store_of:
            for topic, body, key in zip(topics, bodies, keys, strict=True):
                names = {"PGROUP": "g", "REAL_TOPIC": "T", **({"UNIQ_KEY": key} if key else {})}
                store_of.append(
                    pa.record_batch({
                        "topic": [topic], "body": pa.array([body], pa.binary()),
                        "properties": pa.array([encoded(names)], pa.binary()),
                    })
                )  # fmt: skip
        found = OpenHalves()
        with Store.open(folder) as store, pytest.MonkeyPatch.context() as patched:
            patched.setattr("rmqstore_spark.reader.transactions._AT_ONCE", at_once)
            parts = sorted(data.draw(st.sets(st.integers(1, len(steps)), max_size=3)))
            for part in (*parts, len(steps)):
                found.read_on(
                    store, range(topics[:part].count(HALF)), range(topics[:part].count(OP))
                )
            whole = find_transactions(store).waiting
    assert [one.places for one in found.waiting] == [one.places for one in whole]
    assert {place.queue_offset for one in whole for place in one.places} == open_halves.keys()


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
