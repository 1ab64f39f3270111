"""Messages with a delay level become messages of SCHEDULE_TOPIC_XXXX, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.record.addressee import retarget
from rmqstore_spark.layout.record.block import Route, check_block
from rmqstore_spark.layout.record.delayed import due_codes, schedule
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import binary_array
from tests.support.messages.spans import decode_properties

pytestmark = pytest.mark.usefixtures("each_kernel")

WAITS = "SCHEDULE_TOPIC_XXXX"
DELAYS = (1_000, 5_000, 60_000)
NAMES = st.sampled_from(["TAGS", "KEYS", "REAL_TOPIC", "REAL_QID", "DELAYED", "a", "é"])
VALUES = st.text("abc é\x01", min_size=1, max_size=5)
HOSTS = st.sampled_from(["10.1.2.3:40000", "[2001:db8:0:0:0:0:0:1]:7"])
MESSAGES = st.fixed_dictionaries(
    {
        "topic": st.text("abT_%", min_size=1, max_size=30),
        "queueId": st.integers(0, 70_000),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "bornTimestamp": st.integers(0, 2**60),
        "reconsumeTimes": st.integers(0, 20),
        "bornHost": HOSTS,
        "body": st.binary(max_size=20),
        "level": st.none() | st.integers(-2, 6),
        "others": st.dictionaries(NAMES, VALUES, max_size=4),
        "closed": st.booleans(),
    }
)


def text_of(message: dict[str, Any]) -> bytes:
    """The properties as a client wrote them; some end each one with a separator."""
    named = dict(message["others"])
    if message["level"] is not None:
        named["DELAY"] = str(message["level"])
    joined = "\x02".join(f"{name}\x01{value}" for name, value in named.items())
    return (joined + "\x02" * (message["closed"] and bool(joined))).encode()


def encoded(messages: list[dict[str, Any]], store_host: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    columns = {}
    for name, kind in RECORD_COLUMNS.items():
        if name == "properties":
            values: list[Any] = [text_of(message) for message in messages]
        elif name == "storeHost":
            values = [store_host] * len(messages)
        else:
            values = [message.get(name, 0) for message in messages]
        columns[name] = pa.array(values, kind)
    return np.array(encode_records(pa.RecordBatch.from_pydict(columns)).data)


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.booleans())
def test_topic_queue_and_properties_change_and_nothing_else(
    messages: list[dict[str, Any]], v6: bool
) -> None:
    host = "[0:0:0:0:0:0:0:0]:0" if v6 else "0.0.0.0:0"
    data = encoded(messages, host)
    block = check_block(data, max_body=100, store_host_v6=v6, allowed_sys_flag=0)
    assert block.delayed == sum(message["level"] is not None for message in messages)
    made = schedule(block, DELAYS)
    wanted = []
    for message in messages:
        level = min(message["level"] or 0, len(DELAYS))
        if level > 0:
            kept = {k: v for k, v in message["others"].items() if not k.startswith("REAL_")}
            real = {"REAL_TOPIC": message["topic"], "REAL_QID": str(message["queueId"])}
            message = {
                **message, "topic": WAITS, "queueId": level - 1, "level": level,
                "others": {**kept, **real}, "closed": False,
            }  # fmt: skip
        wanted.append(message)
    expected = check_block(
        encoded(wanted, host), max_body=100, store_host_v6=v6, allowed_sys_flag=0
    )
    assert made.sizes.tolist() == expected.sizes.tolist()
    assert made.routes == expected.routes
    assert made.route_of.tolist() == expected.route_of.tolist()
    for one, other in ((made, expected), (expected, made)):
        rows = decode_records(one.data, one.starts, one.sizes)
        others = decode_records(other.data, other.starts, other.sizes)
        assert (rows.status == 0).all()
        assert (rows.longs == others.longs).all()
        lengths = [7, 8, 9, 10, 11, 12]
        assert (np.delete(rows.ints, lengths, 0) == np.delete(others.ints, lengths, 0)).all()
        assert binary_array(rows.body).equals(binary_array(others.body))
        named, other_named = (
            [dict(pairs) for pairs in decode_properties(found.properties).to_pylist()]
            for found in (rows, others)
        )
        assert named == other_named
    codes = due_codes(made.routes, made.route_of, made.tags_code, 1_000_000)
    for row, message in enumerate(wanted):
        if message["topic"] == WAITS:
            assert codes[row] == 1_000_000 + DELAYS[message["queueId"]]
        else:
            assert codes[row] == block.tags_code[row]


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_copy_has_another_place_and_room_for_the_stores_host(
    messages: list[dict[str, Any]], v6: bool, to_v6: bool
) -> None:
    host = "[2001:db8:0:0:0:0:0:2]:5" if v6 else "10.0.0.7:5"
    data = encoded(messages, host)
    block = check_block(data, max_body=100, store_host_v6=v6, allowed_sys_flag=0)
    records = decode_records(block.data, block.starts, block.sizes)
    n = len(messages)
    made = retarget(
        records,
        pa.array([b"other"] * n, pa.binary()),
        np.arange(n, dtype=np.int32),
        pa.array([b"x\x01%d" % row for row in range(n)], pa.binary()),
        store_host_v6=to_v6,
        prepared_offset=np.arange(n, dtype=np.int64) + 2**40,
    )
    bytes_ = np.frombuffer(b"".join(made.to_pylist()), np.uint8)
    sizes = np.array([len(record) for record in made.to_pylist()], np.int32)
    starts = np.cumsum(sizes) - sizes
    copies = decode_records(bytes_, starts.astype(np.int64), sizes)
    assert (copies.status == 0).all()
    assert binary_array(copies.topic).to_pylist() == [b"other"] * n
    assert copies.queue_id.tolist() == list(range(n))
    assert copies.prepared_transaction_offset.tolist() == [2**40 + row for row in range(n)]
    assert binary_array(copies.properties).to_pylist() == [b"x\x01%d" % row for row in range(n)]
    assert binary_array(copies.body).to_pylist() == [message["body"] for message in messages]
    assert copies.born_timestamp.tolist() == [message["bornTimestamp"] for message in messages]
    assert copies.flag.tolist() == [message["flag"] for message in messages]
    assert copies.body_crc.tolist() == records.body_crc.tolist()
    assert (copies.store_host_v6 == to_v6).all()
    assert (copies.born_host_v6 == records.born_host_v6).all()
    for row, at in enumerate(copies.born_host_at.tolist()):
        width = 20 if copies.born_host_v6[row] else 8
        mine = int(records.born_host_at[row])
        assert bytes_[at : at + width].tobytes() == data[mine : mine + width].tobytes()


def test_a_block_without_levels_stays_the_same_block() -> None:
    message = {"topic": "T", "bornHost": "10.1.2.3:1", "body": b"", "level": -1, "others": {},
               "closed": False}  # fmt: skip
    data = encoded([message], "0.0.0.0:0")
    block = check_block(data, max_body=9, store_host_v6=False, allowed_sys_flag=0)
    assert schedule(block, DELAYS) is block
    assert block.routes == (Route("T", 0),)
