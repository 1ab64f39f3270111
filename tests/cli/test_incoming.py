"""Lines of stdin become messages, and the records that a producer's client would make."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.cli.shared.incoming import LineEncoder, Message, Template, lines_of
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.layout.record.block import check_block
from rmqstore_spark.wire.reading import OpenReply, TopicSettings


def read(line: str, **template: Any) -> Message:
    return Template(as_json=True, **template).read(line.encode(), 7)


def test_a_line_is_a_body() -> None:
    template = Template("orders", "paid", "k1 k2", 3)
    assert template.read(b"caf\xc3\xa9 \xff\r", 1) == Message(
        "orders", b"caf\xc3\xa9 \xff", "paid", "k1 k2", queue_id=3
    )


def test_a_line_of_json() -> None:
    line = {
        "topic": "orders", "queueId": 2, "shardingKey": "s", "tags": "t", "keys": ["a", "b"],
        "properties": {"x": "1"}, "body": "aGk=", "bodyEncoding": "base64", "flag": 9,
        "bornTimestamp": "2026-11-21T00:00:00Z",
    }  # fmt: skip
    assert read(json.dumps(line)) == Message(
        "orders", b"hi", "t", "a b", {"x": "1"}, 2, "s", 9, 1_795_219_200_000
    )
    assert read('{"body": "b", "keys": "a b"}', topic="x").keys == "a b"
    assert read('{"body": "b", "properties": {"x": null, "y": "1"}}', topic="x").properties == {
        "y": "1"
    }


def test_what_reading_prints_can_be_put_back() -> None:
    printed = {
        "brokerName": "b", "topic": "t", "queueId": 0, "queueOffset": 5, "physicalOffset": 7,
        "msgId": "0" * 32, "uniqKey": None, "tags": None, "keys": None, "body": "x",
        "bodyEncoding": "utf-8", "properties": {}, "bornTimestamp": "2026-11-21T00:00:00.000Z",
        "bornHost": "1.2.3.4:5", "storeTimestamp": "2026-11-21T00:00:00.000Z",
        "storeHost": "1.2.3.4:5", "flag": 0, "sysFlag": 0, "bodyCRC": 1, "reconsumeTimes": 0,
        "preparedTransactionOffset": 0, "storeSize": 100,
    }  # fmt: skip
    assert read(json.dumps(printed)).body == b"x"
    assert read(json.dumps(printed), topic="other").topic == "other"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "Line 7 of stdin is not a message"),
        ("[1]", "not an object"),
        ('{"topic": "t"}', "no body"),
        ('{"body": "x"}', "no topic"),
        ('{"topic": "t", "body": 5}', "body must be a string"),
        ('{"topic": "t", "body": "x", "delay": 3}', "'delay' is unknown"),
        ('{"topic": "t", "body": "x", "keys": ["a b"]}', "space"),
        ('{"topic": "t", "body": "x", "keys": [1]}', "keys must be"),
        ('{"topic": "t", "body": "x", "properties": {"a": 1}}', "properties must be"),
        ('{"topic": "t", "body": "x", "queueId": -1}', "queueId must be"),
        ('{"topic": "t", "body": "x", "queueId": true}', "queueId must be"),
        ('{"topic": "t", "body": "x", "bornTimestamp": "soon"}', "bornTimestamp"),
        ('{"topic": "t", "body": "x", "bornTimestamp": 9223372036854775808}', "bornTimestamp"),
        (r'{"topic": "t", "body": "x", "tags": "\ud800"}', "surrogates"),
        (r'{"topic": "t", "body": "x", "keys": ["\ud800"]}', "surrogates"),
        (r'{"topic": "t", "body": "x", "properties": {"a": "\ud800"}}', "surrogates"),
        ('{"topic": "t", "body": "?", "bodyEncoding": "base64"}', "not valid base64"),
        ('{"topic": "t", "body": "x", "bodyEncoding": "hex"}', "bodyEncoding"),
        ("[" * 100_000, "not a message"),
    ],
)
def test_a_line_that_is_none_is_named(line: str, wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong):
        read(line)


def test_lines_come_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    wanted = [b"", b"a", b"b" * 3_000_000, b"c"]
    path.write_bytes(b"\n".join(wanted))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert [line for lines in lines_of(descriptor, 4_000_000) for line in lines] == wanted
        os.lseek(descriptor, 0, os.SEEK_SET)
        with pytest.raises(OptionError, match="is longer than 2000000 bytes"):
            list(lines_of(descriptor, 2_000_000))
    finally:
        os.close(descriptor)


def encoder(v6: bool = False) -> LineEncoder:
    topics = {"orders": TopicSettings(4, 4, 6), "one": TopicSettings(1, 1, 6)}
    return LineEncoder(
        OpenReply(1, "id", "broker-a", True, v6, 1_000, 1 << 20, 1 << 16, True, 8, topics)
    )


@pytest.mark.parametrize("v6", [False, True])
def test_records_are_such_as_a_store_takes(v6: bool) -> None:
    messages = [
        Message("orders", b"first", "paid", "k1 k2", {"x": "1", "DELAY": "3"}),
        Message("one", b"", born_timestamp=5, flag=9),
    ]
    data = encoder(v6).block(messages, 1)
    block = check_block(
        np.array(data), max_body=1_000, store_host_v6=v6, allowed_sys_flag=0x10 | 0x20
    )
    assert [route.topic for route in block.routes] == ["orders", "one"]
    assert block.tags_code.tolist() == [java_hash_code_str("paid"), 0]
    assert b"first" in data.tobytes()
    assert b"DELAY" not in data.tobytes()
    late = encoder(v6).block([Message("one", b"", delay_level=4)], 1)
    assert b"\x02DELAY\x014" in late.tobytes()


def test_queues_are_chosen_as_clients_choose_them() -> None:
    made = encoder()

    def queue(**given: Any) -> int:
        data = made.block([Message("orders", b"x", **given)], 1)
        return int.from_bytes(data[12:16].tobytes(), "big")

    assert [queue() for _ in range(5)] == [0, 1, 2, 3, 0]
    assert queue(queue_id=2) == 2
    # Java: "order-7".hashCode() % 4, and its absolute value.
    code = java_hash_code_str("order-7")
    assert queue(keys="order-7") == abs(code) % 4
    assert queue(keys="k", sharding_key="order-7") == abs(code) % 4


def test_what_cannot_be_stored_names_its_line() -> None:
    with pytest.raises(OptionError, match=r"Line 12 of stdin is for queue 4 .*0 to 3"):
        encoder().block([Message("orders", b"x"), Message("orders", b"x", queue_id=4)], 11)
    with pytest.raises(OptionError, match=r"Line 11 .*1001 bytes.*1000 \(maxMessageSize\)"):
        encoder().block([Message("orders", b"x" * 1_001)], 11)
    with pytest.raises(OptionError, match="Line 12 of stdin has a property"):
        encoder().block(
            [Message("orders", b"x"), Message("orders", b"x", properties={"a": "\2"})], 11
        )
    with pytest.raises(OptionError, match=r"Line 11 .* empty name or value.* null to leave it out"):
        encoder().block([Message("orders", b"x", properties={"a": ""})], 11)
