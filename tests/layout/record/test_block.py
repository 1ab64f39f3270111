"""Blocks to be stored, by the compiled kernel and by the reference."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import BlockError
from rmqstore_spark.layout.constants import (
    MAGIC_V2,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK_TYPE,
)
from rmqstore_spark.layout.hosts import encode_host
from rmqstore_spark.layout.index.hashing import index_key_hash, java_hash_code_str
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record import block
from rmqstore_spark.layout.record.block import Block, Route, check_block, read_block
from rmqstore_spark.layout.record.columns import build_batch
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.spans import U1
from tests.support.messages.strategies import HOSTS, INT64, OFFSETS, client_records
from tests.support.stores.golden import RecordReport, load_entries, load_records
from tests.support.stores.records import record_batch, stored_bytes

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

ALLOWED = 0x70D
GOLDEN = [
    "basic", "tiny", "boundary", "batch", "live", "flags", "ipv6", "lmq", "multipath",
    "transactions", "delayed", "extcq", "unclean", "v5basic", "v5v2topic", "dledger",
]  # fmt: skip


def check(data: U1, *, v6: bool = False, max_body: int = 1 << 22, rows: int = 1 << 16) -> Block:
    return check_block(
        data, max_body=max_body, store_host_v6=v6, allowed_sys_flag=ALLOWED, max_rows=rows
    )


def keys_of(record: RecordReport) -> list[str]:
    """What a record is indexed under, in RocketMQ's order."""
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK_TYPE:
        return []
    unique = [record.properties["UNIQ_KEY"]] if "UNIQ_KEY" in record.properties else []
    return unique + [key for key in record.properties.get("KEYS", "").split(" ") if key]


def queued(record: RecordReport) -> bool:
    return record.sys_flag & TRANSACTION_MASK in (0, 8)


@both_kernels
@given(data=st.data(), v6=st.booleans())
def test_what_was_put_in_is_read_back_with_the_stores_stamp(
    data: st.DataObject, v6: bool, each_kernel: str
) -> None:
    messages = data.draw(st.lists(client_records(store_v6=v6), min_size=1, max_size=10))
    host = data.draw(HOSTS.filter(lambda host: (host[0] == "[") == v6))
    time, begin, base = data.draw(INT64), data.draw(OFFSETS), data.draw(OFFSETS)
    raw = encode_records(record_batch(messages)).data.copy()

    found = check(raw, v6=v6)
    assert [found.routes[r] for r in found.route_of] == [
        Route(message.topic, message.queue_id) for message in messages
    ]
    assert found.queued.tolist() == [queued(message) for message in messages]
    assert block.body_sizes(found).tolist() == [len(message.body) for message in messages]
    next_offsets = np.full(len(found.routes), begin, np.int64)
    queue_offset = block.number_rows(found.route_of, found.queued, next_offsets)
    physical = base + found.starts
    block.stamp_records(raw, found.starts, queue_offset, physical, time, encode_host(host))

    records = decode_records(raw, found.starts, found.sizes)
    assert not records.status.any()
    assert not records.body_crc_mismatch().any()
    assert records.store_timestamp.tolist() == [time] * len(messages)
    assert records.physical_offset.tolist() == physical.tolist()
    columns = ["topic", "queueId", "queueOffset", "body", "bornHost", "storeHost", "properties"]
    taken = dict.fromkeys(found.routes, begin)
    for row, message in zip(
        build_batch(records, columns, broker="b").to_pylist(), messages, strict=True
    ):
        route = Route(message.topic, message.queue_id)
        assert (row["topic"], row["queueId"]) == (message.topic, message.queue_id)
        assert row["queueOffset"] == (taken[route] if queued(message) else 0)
        taken[route] += queued(message)
        assert (row["body"], row["bornHost"]) == (message.body, message.born_host)
        assert (row["storeHost"], dict(row["properties"])) == (host, message.properties)
    assert records.born_timestamp.tolist() == [m.born_timestamp for m in messages]
    assert records.flag.tolist() == [m.flag for m in messages]
    assert next_offsets.tolist() == [taken[route] for route in found.routes]


@both_kernels
@given(messages=st.lists(client_records(), max_size=10))
def test_entries_and_keys_are_those_of_the_messages(
    messages: list[RecordReport], each_kernel: str
) -> None:
    encoded = encode_records(record_batch(messages)) if messages else None
    found = check(encoded.data if encoded else np.empty(0, np.uint8))
    physical = 1000 + found.starts
    entries, bounds = CONSUME_QUEUE.of_block(found, physical)
    assert bounds[-1] == len(entries)
    rows = list(zip(messages, physical.tolist(), found.sizes.tolist(), strict=True))
    for number, route in enumerate(found.routes):
        expected = [
            (at, size, java_hash_code_str(message.properties.get("TAGS", "")))
            for message, at, size in rows
            if queued(message)
            and (message.topic, message.queue_id) == (route.topic, route.queue_id)
        ]
        assert entries[bounds[number] : bounds[number + 1]].tolist() == expected
    hashes, owner = block.index_hashes(found.data, found.starts, found.sizes)
    keyed = [
        (message, row, key) for row, message in enumerate(messages) for key in keys_of(message)
    ]
    assert owner.tolist() == [row for _, row, _ in keyed]
    topics = pa.array([message.topic for message, _, _ in keyed], pa.string())
    assert hashes.tolist() == index_key_hash(topics, [key for *_, key in keyed]).tolist()


def assert_keys(hashes: list[int], rows: list[int], records: list[RecordReport]) -> None:
    keyed = [(row, key) for row, record in enumerate(records) for key in keys_of(record)]
    assert rows == [row for row, _ in keyed]
    topics = pa.array([records[row].topic for row, _ in keyed], pa.string())
    assert hashes == index_key_hash(topics, [key for _, key in keyed]).tolist()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_records_have_the_entries_and_keys_that_rocketmq_gave_them(
    golden: Callable[[str], Path], name: str, each_kernel: str
) -> None:
    look_up = stored_bytes(golden(name))
    records = [r for r in load_records(golden(name)) if r.crc_ok]
    data = np.frombuffer(b"".join(look_up(r) for r in records), np.uint8)
    found = read_block(data)
    assert len(found) == len(records)
    entries, bounds = CONSUME_QUEUE.of_block(found, np.array([r.physical_offset for r in records]))
    listed = load_entries(golden(name))
    compared = 0
    for number, route in enumerate(found.routes):
        made = entries[bounds[number] : bounds[number + 1]]
        told = [e for e in listed.get((route.topic, route.queue_id), []) if e.physical_offset >= 0]
        assert made["physicalOffset"].tolist() == [e.physical_offset for e in told]
        assert made["size"].tolist() == [e.size for e in told]
        if route.topic != SCHEDULE_TOPIC:  # there it is the time at which the message is due
            codes = [e.tags_code if e.ext_tags_code is None else e.ext_tags_code for e in told]
            assert made["tagsCode"].tolist() == codes
            compared += len(told)
    assert compared > 0

    hashes, owner = block.index_hashes(data, found.starts, found.sizes)
    assert_keys(hashes.tolist(), owner.tolist(), records)


@pytest.mark.parametrize("name", ["basic", "tiny", "boundary", "batch", "transactions", "live"])
def test_golden_records_get_the_offsets_that_rocketmq_gave_them(
    golden: Callable[[str], Path], name: str, each_kernel: str
) -> None:
    look_up = stored_bytes(golden(name))
    records = load_records(golden(name))
    data = np.frombuffer(b"".join(look_up(r) for r in records), np.uint8)
    found = read_block(data)
    next_offsets = np.zeros(len(found.routes), np.int64)
    numbers = block.number_rows(found.route_of, found.queued, next_offsets)
    assert numbers.tolist() == [r.queue_offset for r in records]


def message(**changes: object) -> RecordReport:
    fields = {
        "topic": "T", "queue_id": 1, "queue_offset": 0, "physical_offset": 0, "store_size": 0,
        "body_crc": 0, "flag": 0, "sys_flag": 0, "born_timestamp": 5, "born_host": "1.2.3.4:5",
        "store_timestamp": 0, "store_host": "0.0.0.0:0", "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body": b"body", "body_uncompressed": None,
        "properties": {}, "properties_raw": b"TAGS\x01a", "msg_id": "", "crc_ok": True, "raw": {},
    }  # fmt: skip
    return RecordReport(**{**fields, **changes})  # type: ignore[arg-type]  # as the names say


def encoded(*messages: RecordReport) -> U1:
    return encode_records(record_batch(list(messages))).data.copy()


TWO = encoded(message(), message())
SECOND = len(TWO) // 2
TOPIC_AT = 88 + len(b"body") + 1
TOO_MUCH = 40_000


def long_properties() -> bytes:
    """A record whose properties take more bytes than the format's readers accept."""
    raw = bytearray(encoded(message(properties_raw=b"")).tobytes())
    raw[-2:] = TOO_MUCH.to_bytes(2, "big")
    raw += b"a\x01" + b"v" * (TOO_MUCH - 2)
    raw[:4] = len(raw).to_bytes(4, "big")
    return bytes(raw)


def changed(at: int, value: bytes) -> U1:
    """Two records, with some bytes of the second changed."""
    data = TWO.copy()
    data[SECOND + at : SECOND + at + len(value)] = np.frombuffer(value, np.uint8)
    return data


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (TWO[:-1], "past the end of the block"),
        (TWO[: SECOND + 50], "its size is too small"),
        (changed(0, b"\x00\x00\x00\x5a"), "its size is too small"),
        (changed(0, b"\xff\xff\xff\xff"), "its size is too small"),
        (changed(4, MAGIC_V2.to_bytes(4, "big", signed=True)), "unknown magic code"),
        (changed(4, b"\x00\x00\x00\x00"), "unknown magic code"),
        (changed(84, b"\x00\x00\x00\x05"), "lengths do not add up"),
        (changed(84, b"\xff\xff\xff\xff"), "lengths do not add up"),
        (changed(TOPIC_AT - 1, b"\x02"), "lengths do not add up"),
        (changed(TOPIC_AT, b"\xff"), "topic is empty or not UTF-8"),
        (changed(12, b"\xff"), "queueId is negative"),
        (changed(36, b"\x80"), "sysFlag has bits"),
        (changed(39, b"\x02"), "sysFlag has bits"),
        (changed(72, b"\x80"), "reconsumeTimes is negative"),
        (changed(76, b"\x80"), "preparedTransactionOffset is not zero"),
        (changed(83, b"\x01"), "preparedTransactionOffset is not zero"),
        (changed(52, b"\xff"), "port of its bornHost is over 65535"),
        (changed(53, b"\x01"), "port of its bornHost is over 65535"),
        (changed(88, b"B"), "does not match its bodyCRC"),
        (changed(8, b"\x80"), "does not match its bodyCRC"),
        (encoded(message(), message(topic="")), "topic is empty"),
        (
            encoded(message(), message(store_host="[0:0:0:0:0:0:0:0]:0")),
            "storeHost has another length",
        ),
        (encoded(message(), message(body=b"b" * 2001)), "larger than maxMessageSize"),
        (
            encoded(message(), message(properties_raw=b"__CRC32#\x010123456789\x02")),
            "has a CRC property",
        ),
        (
            encoded(message(), message(properties_raw=b"INNER_MULTI_DISPATCH\x01%LMQ%a")),
            "names light queues",
        ),
        (encoded(message(), message(), message()), "more records than are allowed"),
    ],
)
def test_what_is_no_acceptable_record_is_refused_by_its_place(
    data: U1, cause: str, each_kernel: str
) -> None:
    with pytest.raises(BlockError, match=cause) as caught:
        check(data, max_body=2000, rows=2)
    error = caught.value
    assert error.status == "MESSAGE_ILLEGAL"
    row = 2 if "more records" in cause else 1
    assert (error.row, error.at) == (row, row * SECOND)
    assert f"record {row} of the block, at byte {row * SECOND}" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_properties_that_are_too_long_have_a_status_of_their_own(each_kernel: str) -> None:
    data = np.frombuffer(TWO.tobytes() + long_properties(), np.uint8)
    with pytest.raises(BlockError, match="more than 32767 bytes") as caught:
        check(data)
    assert (caught.value.status, caught.value.row) == ("PROPERTIES_SIZE_EXCEEDED", 2)


def test_what_is_just_allowed_is_taken(each_kernel: str) -> None:
    most = message(
        topic="t" * 127, body=b"b" * 2000, properties_raw=b"a\x01" + b"v" * 32_765,
        born_host="[0:0:0:0:0:0:0:1]:9", queue_id=2**31 - 1, sys_flag=ALLOWED,
    )  # fmt: skip
    assert check(encoded(most, message(body=b"")), max_body=2000, rows=2).routes == (
        Route("t" * 127, 2**31 - 1),
        Route("T", 1),
    )


def test_a_block_may_be_empty_and_may_be_read_only(each_kernel: str) -> None:
    nothing = check(np.empty(0, np.uint8))
    assert (len(nothing), nothing.routes) == (0, ())
    entries, bounds = CONSUME_QUEUE.of_block(nothing, np.empty(0, np.int64))
    assert (len(entries), bounds.tolist()) == (0, [0])
    fixed, zero = np.frombuffer(TWO.tobytes(), np.uint8), np.zeros(1, np.int64)
    assert len(check(fixed)) == 2
    with pytest.raises(ValueError, match="read-only"):
        block.stamp_records(fixed, zero, zero, zero, 0, bytes(8))


@pytest.mark.parametrize(
    "data",
    [
        encoded(message(), message(properties_raw=b"INNER_MULTI_DISPATCH\x01%LMQ%a")),
        changed(72, b"\x80"),
        changed(83, b"\x01"),
        changed(52, b"\xff"),
    ],
)
def test_what_a_broker_may_hold_is_taken_from_one(data: U1, each_kernel: str) -> None:
    assert len(read_block(data)) == 2


def test_the_port_of_a_wide_born_host_stands_elsewhere(each_kernel: str) -> None:
    wide = encoded(message(born_host="[0:0:0:0:0:0:1:0]:65535"))
    assert len(check(wide)) == 1
    wide[48 + 16] = 1
    with pytest.raises(BlockError, match="port of its bornHost is over 65535"):
        check(wide)


def test_compressed_bodies_are_counted(each_kernel: str) -> None:
    data = encoded(message(), message(sys_flag=1), message(sys_flag=0x300), message(sys_flag=0x201))
    assert check(data).compressed == 2
    assert read_block(data).compressed == 2


def test_a_bodys_crc_is_not_looked_at_where_that_is_not_wanted(each_kernel: str) -> None:
    assert len(read_block(changed(88, b"B"))) == 2
