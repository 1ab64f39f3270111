"""Half messages: what becomes of a message while it waits, and when it is committed or given up."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.layout.record.addressee import addressees
from rmqstore_spark.layout.record.block import Block, BlockError, check_block
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.format import Records, decode_records
from rmqstore_spark.layout.record.half import committed, given_up, hold, restored
from rmqstore_spark.layout.spans import U1, string_array
from tests.support.messages.spans import decode_properties

pytestmark = pytest.mark.usefixtures("each_kernel")

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
NAMES = st.sampled_from(["TAGS", "KEYS", "REAL_TOPIC", "REAL_QID", "a", "é"])
VALUES = st.text("abc é", min_size=1, max_size=5)
DELAYS = st.fixed_dictionaries({}, optional={"DELAY": st.integers(-1, 20).map(str)})
OTHERS = st.builds(operator.or_, st.dictionaries(NAMES, VALUES, max_size=4), DELAYS)
MESSAGES = st.fixed_dictionaries(
    {
        "topic": st.text("abT_", min_size=1, max_size=127),
        "queueId": st.integers(0, 60_000),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sysFlag": st.sampled_from([0, 2]),
        "bornTimestamp": st.integers(0, 2**60),
        "bornHost": st.sampled_from(["10.1.2.3:40000", "[2001:db8:0:0:0:0:0:1]:7"]),
        "body": st.binary(max_size=20),
        "others": OTHERS,
        "closed": st.booleans(),
    }
)
SAME = (
    "flag", "born_timestamp", "reconsume_times", "body_crc", "prepared_transaction_offset",
    "sys_flag",
)  # fmt: skip


def block_of(messages: list[dict[str, Any]], *, v6: bool) -> Block:
    columns = {}
    for name, kind in RECORD_COLUMNS.items():
        if name == "properties":
            values: list[Any] = [text_of(message) for message in messages]
        elif name == "storeHost":
            values = ["[::]:0" if v6 else "0.0.0.0:0"] * len(messages)
        else:
            values = [message.get(name, 0) for message in messages]
        columns[name] = pa.array(values, kind)
    data = np.array(encode_records(pa.RecordBatch.from_pydict(columns)).data)
    return check_block(data, max_body=1000, store_host_v6=v6, allowed_sys_flag=2)


def text_of(message: dict[str, Any]) -> bytes:
    named = {**message["others"], "TRAN_MSG": "True", "PGROUP": "pg"}
    joined = "\x02".join(f"{name}\x01{value}" for name, value in named.items())
    return (joined + "\x02" * message["closed"]).encode()


def records_of(data: U1) -> Records:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4].tobytes(), "big")
    positions = np.array(starts, np.int64)
    return decode_records(data, positions, (len(data) - positions).astype(np.int32))


def facts(records: Records) -> list[list[Any]]:
    numbers = [getattr(records, name).tolist() for name in SAME]
    return [*numbers, string_array(records.body).to_pylist()]


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.booleans())
def test_a_message_comes_out_as_it_went_in(messages: list[dict[str, Any]], v6: bool) -> None:
    block = block_of(messages, v6=v6)
    given_in = decode_records(block.data, block.starts, block.sizes)
    held = hold(block, most_bytes=1 << 20)
    assert [route.topic for route in held.routes] == [HALF]
    waits = decode_records(held.data, held.starts, held.sizes)
    assert (waits.status == 0).all()
    assert (waits.queue_id == 0).all()
    assert facts(waits) == facts(given_in)
    for message, stored in zip(
        messages, decode_properties(waits.properties).to_pylist(), strict=True
    ):
        real = {"REAL_TOPIC": message["topic"], "REAL_QID": str(message["queueId"])}
        own = {k: v for k, v in message["others"].items() if k not in real}
        assert dict(stored) == {**own, "TRAN_MSG": "True", "PGROUP": "pg", **real}
        assert len(stored) == len(dict(stored)), "nothing is there twice"
    to = addressees(waits, 65_536)
    assert to.known.all()
    offsets = np.arange(len(messages)) * 1000
    done = records_of(committed(waits, to, offsets, store_host_v6=v6))
    assert string_array(done.topic).to_pylist() == [message["topic"] for message in messages]
    assert done.queue_id.tolist() == [message["queueId"] for message in messages]
    assert done.prepared_transaction_offset.tolist() == offsets.tolist()
    assert (done.sys_flag ^ waits.sys_flag).tolist() == [8] * len(messages)
    assert decode_properties(done.properties).equals(decode_properties(waits.properties))
    assert facts(done)[-1] == facts(given_in)[-1]
    last = records_of(given_up(waits, to.properties, store_host_v6=v6))
    assert set(string_array(last.topic).to_pylist()) == {"TRANS_CHECK_MAX_TIME_TOPIC"}
    assert facts(last) == facts(given_in)


@settings(max_examples=30)
@given(MESSAGES, st.booleans(), st.integers(1, 1 << 30))
def test_a_producer_is_asked_about_the_message_that_it_sent(
    message: dict[str, Any], v6: bool, checks: int
) -> None:
    held = hold(block_of([message], v6=v6), most_bytes=1 << 20)
    one = decode_records(held.data, held.starts, held.sizes)
    for times in (checks, checks + 1):  # a broker counts in the half message, and asks again
        asked = records_of(np.frombuffer(restored(one, addressees(one, 65_536), times), np.uint8))
        assert (asked.status.tolist(), len(asked)) == ([0], 1)
        assert string_array(asked.topic).to_pylist() == [message["topic"]]
        assert asked.queue_id.tolist() == [message["queueId"]]
        assert facts(asked) == facts(one)
        for name in ("queue_offset", "physical_offset", "store_timestamp"):
            assert getattr(asked, name).tolist() == getattr(one, name).tolist()
        assert asked.store_host(0) == one.store_host(0)
        assert dict(decode_properties(asked.properties)[0].as_py()) == {
            **dict(decode_properties(one.properties)[0].as_py()),
            "TRANSACTION_CHECK_TIMES": str(times),
        }
        one = asked


def test_no_room_for_the_number_of_checks_is_no_reason_not_to_ask() -> None:
    message = {
        "topic": "T", "queueId": 1, "bornHost": "10.1.2.3:4", "body": b"x",
        "others": {"a": "x" * 32_710}, "closed": False,
    }  # fmt: skip
    held = hold(block_of([message], v6=False), most_bytes=1 << 20)
    one = decode_records(held.data, held.starts, held.sizes)
    asked = records_of(np.frombuffer(restored(one, addressees(one, 65_536), 7), np.uint8))
    assert decode_properties(asked.properties).equals(decode_properties(one.properties))


def test_a_block_is_refused_for_the_first_message_that_cannot_wait() -> None:
    message = {
        "topic": "T", "queueId": 1, "bornHost": "10.1.2.3:4", "body": b"x" * 100,
        "others": {}, "closed": False,
    }  # fmt: skip
    block = block_of([message, message], v6=False)
    most = int(block.sizes[0]) + 24 + len("\x02REAL_TOPIC\x01T\x02REAL_QID\x011") + 126
    assert len(hold(block, most_bytes=most)) == 2
    with pytest.raises(BlockError, match=r"no segment has room") as caught:
        hold(block, most_bytes=most - 1)
    assert caught.value.row == 0
    assert not len(hold(block_of([], v6=False), most_bytes=1))
