"""Rows to blocks: what the store process checks, and what a reader then sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.encode import BlockToSend, RowEncoder, StoreBlocks
from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.record.block import check_block
from rmqstore_spark.layout.record.columns import COLUMNS, build_batch
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.produce.queue_choice import Queues
from rmqstore_spark.wire.reading import OpenReply
from tests.datasource.sink.test_sink_columns import fields

ENDPOINT = "rmq://127.0.0.1:10921"
NOW = 1_700_000_000_123
Row = dict[str, Any]


def opened(**settings: Any) -> OpenReply:
    plain = OpenReply(
        protocol=1, store_id="s", broker_name="b", is_master=True, store_host_v6=False,
        max_message_size=4 << 20, max_block_bytes=8 << 20, max_block_rows=65_536,
        auto_create_topic_enable=True, default_topic_queue_nums=4, topics={},
    )  # fmt: skip
    return replace(plain, **settings)


def encoder(
    schema: StructType,
    replies: Sequence[OpenReply] | None = None,
    first_turn: int = 0,
    **given: str,
) -> RowEncoder[BlockToSend]:
    options = parse_sink_options({"endpoint": ENDPOINT, **given}, streaming=False)
    replies = replies or [opened()]
    columns = find_columns(schema, options.messages)
    queues = Queues.of([4] * len(replies))
    blocks = StoreBlocks(replies, lambda _: queues)
    return RowEncoder(options.messages, columns, blocks, first_turn, clock=lambda: NOW)


def batch_of(rows: Sequence[Row], **kinds: pa.DataType) -> pa.RecordBatch:
    fields = [pa.field(name, kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(fields))


def messages(block: BlockToSend, *, store_host_v6: bool = False) -> list[Row]:
    """What a store process takes the block for, and a reader then gives."""
    checked = check_block(
        block.data, max_body=4 << 20, store_host_v6=store_host_v6, allowed_sys_flag=0
    )
    assert len(checked.starts) == block.rows
    records = decode_records(block.data, checked.starts, checked.sizes)
    rows: list[Row] = build_batch(records, tuple(COLUMNS), broker="b").to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        for stamp in ("bornTimestamp",):
            row[stamp] = round(row[stamp].timestamp() * 1000)
        assert row["queueOffset"] == row["physicalOffset"] == 0
        assert row["storeHost"] == ("[0:0:0:0:0:0:0:0]:0" if store_host_v6 else "0.0.0.0:0")
    return rows


def encoded(made: RowEncoder[BlockToSend], batch: pa.RecordBatch) -> list[Row]:
    return [row for block in made.encode(batch) for row in messages(block)]


def test_a_body_alone() -> None:
    made = encoder(fields("body string"), topic="T")
    rows = encoded(made, batch_of([{"body": "é"}, {"body": ""}], body=pa.string()))
    assert [row["body"] for row in rows] == ["é".encode(), b""]
    for row, queue in zip(rows, (0, 1), strict=True):
        assert (row["topic"], row["queueId"], row["flag"]) == ("T", queue, 0)
        assert row["bornTimestamp"] == NOW
        assert row["reconsumeTimes"] == row["sysFlag"] == 0
        assert (row["tags"], row["keys"]) == (None, None)
        assert row["properties"] == {"UNIQ_KEY": row["uniqKey"]}
        assert row["bornHost"].endswith(":0")
    assert rows[0]["uniqKey"] != rows[1]["uniqKey"]
    assert len(rows[0]["uniqKey"]) in (32, 56)


def test_every_column() -> None:
    schema = fields(
        "body binary", "topic string", "tags string", "keys array<string>",
        "properties map<string,string>", "shardingKey string", "flag int", "bornTimestamp bigint",
        "delayTimeLevel int",
    )  # fmt: skip
    kinds = {
        "body": pa.binary(), "topic": pa.string(), "tags": pa.string(),
        "keys": pa.list_(pa.string()), "properties": pa.map_(pa.string(), pa.string()),
        "shardingKey": pa.string(), "flag": pa.int32(), "bornTimestamp": pa.int64(),
        "delayTimeLevel": pa.int32(),
    }  # fmt: skip
    given: list[Row] = [
        {"body": b"1", "topic": "A", "tags": "t", "keys": ["x", "y"], "shardingKey": "a",
         "properties": [("p", "1"), ("DELAY", "3"), ("TAGS", "no")], "flag": -7,
         "bornTimestamp": 5, "delayTimeLevel": 17},
        {"body": b"2", "topic": "B", "delayTimeLevel": 0},
        {"body": b"3", "topic": "A", "keys": [], "properties": [], "shardingKey": "a"},
    ]  # fmt: skip
    rows = encoded(encoder(schema), batch_of(given, **kinds))
    first, second, third = rows
    assert (first["topic"], first["tags"], first["keys"]) == ("A", "t", ["x", "y"])
    assert (first["flag"], first["bornTimestamp"]) == (-7, 5)
    unnamed = {k: v for k, v in first["properties"].items() if k != "UNIQ_KEY"}
    assert unnamed == {"KEYS": "x y", "TAGS": "t", "DELAY": "17", "p": "1"}
    assert (second["topic"], second["tags"], second["keys"]) == ("B", None, None)
    assert (second["flag"], second["bornTimestamp"]) == (0, NOW)
    assert "DELAY" not in {**second["properties"], **third["properties"]}
    assert third["queueId"] == first["queueId"] == ord("a") % 4


def test_where_there_is_no_sharding_key_the_keys_decide() -> None:
    schema = fields("body string", "keys string", "shardingKey string")
    kinds = {"body": pa.string(), "keys": pa.string(), "shardingKey": pa.string()}
    given: list[Row] = [
        {"body": "", "keys": "b", "shardingKey": "c"},
        {"body": "", "keys": "b"},
        {"body": "", "keys": "b", "shardingKey": ""},
    ]
    rows = encoded(encoder(schema, topic="T"), batch_of(given, **kinds))
    assert [row["queueId"] for row in rows] == [ord("c") % 4, ord("b") % 4, ord("b") % 4]
    in_map = batch_of(
        [{"body": "", "properties": [("KEYS", "c")]}] * 2,
        body=pa.string(), properties=pa.map_(pa.string(), pa.string()),
    )  # fmt: skip
    by_map = encoder(fields("body string", "properties map<string,string>"), topic="T")
    assert [row["queueId"] for row in encoded(by_map, in_map)] == [ord("c") % 4] * 2


def source_rows() -> pa.RecordBatch:
    """Rows as reading gives them, also such that a delivery has left its marks on."""
    from pyspark.sql.pandas.types import to_arrow_schema

    row: Row = dict.fromkeys(COLUMNS)
    row |= {
        "brokerName": "b", "topic": "A", "queueId": 3, "queueOffset": 7, "physicalOffset": 99,
        "msgId": "X", "uniqKey": "ABC", "tags": "t", "keys": ["k"], "body": b"1", "flag": 4,
        "properties": [("UNIQ_KEY", "ABC"), ("KEYS", "k"), ("TAGS", "t"), ("REAL_QID", "1"),
                       ("WAIT", "true"), ("mine", "1")],
        "bornTimestamp": 1_600_000_000_000_000, "bornHost": "10.1.2.3:4567", "storeTimestamp": 0,
        "storeHost": "10.0.0.1:10911", "sysFlag": 0x301, "bodyCRC": 5, "reconsumeTimes": 2,
        "preparedTransactionOffset": 8, "storeSize": 200,
    }  # fmt: skip
    other = row | {
        "uniqKey": None, "bornHost": "[2001:db8:0:0:0:0:0:1]:80", "properties": [], "tags": None,
        "keys": None,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist(
        [row, other], schema=to_arrow_schema(full_schema(), timezone="UTC")
    )


def test_rows_of_reading_are_written_as_new_messages() -> None:
    first, second = encoded(encoder(full_schema()), source_rows())
    assert (first["topic"], first["flag"], first["bornTimestamp"]) == ("A", 4, 1_600_000_000_000)
    assert first["bornHost"] != "10.1.2.3:4567"
    assert first["reconsumeTimes"] == first["sysFlag"] == first["preparedTransactionOffset"] == 0
    assert first["uniqKey"] not in ("ABC", None)
    properties = {k: v for k, v in first["properties"].items() if k != "UNIQ_KEY"}
    assert properties == {"KEYS": "k", "TAGS": "t", "mine": "1"}
    assert second["properties"] == {"UNIQ_KEY": second["uniqKey"]}


def test_preserve_keeps_what_a_message_was_born_with() -> None:
    made = encoder(full_schema(), preserve="true", queueSelector="column")
    first, second = encoded(made, source_rows())
    assert (first["uniqKey"], first["bornHost"], first["reconsumeTimes"]) == (
        "ABC", "10.1.2.3:4567", 2,
    )  # fmt: skip
    assert first["queueId"] == 3
    assert second["bornHost"] == "[2001:db8:0:0:0:0:0:1]:80"
    assert second["sysFlag"] == 0x10
    assert len(second["uniqKey"]) in (32, 56)


def test_preserve_finds_the_id_among_the_properties() -> None:
    made = encoder(
        fields("body string", "properties map<string,string>"), topic="T", preserve="true"
    )
    given = batch_of(
        [{"body": "", "properties": [("UNIQ_KEY", "ABC")]}],
        body=pa.string(), properties=pa.map_(pa.string(), pa.string()),
    )  # fmt: skip
    assert encoded(made, given)[0]["uniqKey"] == "ABC"


def test_blocks_keep_to_the_limits_of_the_store() -> None:
    made = encoder(
        fields("body binary"), [opened(max_block_bytes=10_000, max_block_rows=30)], topic="T"
    )
    sizes = [10, 5000, 9000, *[1] * 100, 4000]
    bodies = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    blocks = list(made.encode(batch_of([{"body": b} for b in bodies], body=pa.binary())))
    assert all(len(block.data) <= 10_000 and block.rows <= 30 for block in blocks)
    assert [row["body"] for block in blocks for row in messages(block)] == bodies


def test_large_batches_are_encoded_part_by_part() -> None:
    made = encoder(fields("body binary"), topic="T")
    bodies = [bytes([n]) * (1 << 20) for n in range(20)]
    blocks = list(made.encode(batch_of([{"body": b} for b in bodies], body=pa.binary())))
    assert max(len(block.data) for block in blocks) < 4 << 20
    assert [row["body"] for block in blocks for row in messages(block)] == bodies


def test_several_stores_get_each_their_part() -> None:
    replies = [opened(), opened(store_host_v6=True)]
    made = encoder(fields("body string"), replies, topic="T")
    given = batch_of([{"body": str(n)} for n in range(20)], body=pa.string())
    first, second = made.encode(given)
    assert (first.store, second.store) == (0, 1)
    at_first = messages(first)
    at_second = messages(second, store_host_v6=True)
    parts = [[int(row["body"]) for row in rows] for rows in (at_first, at_second)]
    assert sorted(parts[0] + parts[1]) == list(range(20))
    assert parts == [sorted(part) for part in parts]
    for rows in (at_first, at_second):
        assert [row["queueId"] for row in rows] == [int(row["body"]) % 4 for row in rows]
    assert {row["sysFlag"] for row in at_second} == {0x20}


def test_a_store_gets_the_same_rows_in_whatever_order_and_partition_they_come() -> None:
    """Its commit is known by them; and each store gets about as many as it has queues."""
    replies = [opened(), opened()]
    wanted = [{"body": f"row-{n}", "tags": f"{n % 3}"} for n in range(1000)]
    seen = []
    for rows, turn in ((wanted, 0), (wanted[::-1], 3), (wanted[500:] + wanted[:500], 6)):
        made = encoder(fields("body string", "tags string"), replies, first_turn=turn, topic="T")
        blocks = made.encode(batch_of(rows, body=pa.string(), tags=pa.string()))
        seen.append([{row["body"] for row in messages(block)} for block in blocks])
    assert seen[0] == seen[1] == seen[2]
    assert min(map(len, seen[0])) > 400


def test_an_empty_batch() -> None:
    made = encoder(fields("body string"), topic="T")
    assert list(made.encode(batch_of([], body=pa.string()))) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"body": None}, r"Row 3 of this task \(topic 'A'\) has null in column body"),
        ({"topic": None}, "Row 3 of this task has null in column topic"),
        ({"topic": "a/../b"}, r"\(topic 'a/../b'\) cannot be stored: .* is not a topic name"),
        ({"topic": "A" * 128}, "1 to 127 of the characters"),
        ({"topic": "TBW102"}, "Topic 'TBW102' is a system topic"),
        ({"body": b"x" * 1001}, r"\(topic 'A'\) has a body of 1,001 bytes, but .* at most 1,000"),
        ({"keys": ["a b"]}, "has a key with a space"),
        ({"tags": "a\x02"}, "0x02, the separator of properties, in TAGS"),
        ({"properties": [("a", "")]}, "with an empty name or value"),
        ({"properties": [("a", "x" * 32_767)]}, "32,[0-9]{3} bytes of properties"),
        ({"queueId": 9}, "queueId 9, but topic 'A' has queues 0 to 3"),
        ({"queueId": None}, "has null in column queueId"),
        ({"flag": 1 << 31}, "has 2147483648 in column flag"),
        ({"reconsumeTimes": -1}, "has -1 in column reconsumeTimes, which must not be neg"),
        (
            {"uniqKey": "a\x02INNER_MULTI_DISPATCH\x01q"},
            "0x02, the separator of properties, in UNIQ_KEY",
        ),
        ({"properties": [("x__CRC32#", "01234567890")]}, "end like the CRC of RocketMQ 5"),
        ({"properties": [("x", "y__CRC32#\x0101234567890")]}, "end like the CRC of RocketMQ 5"),
        ({"bornHost": "1.2.3.4:65536"}, "with a port up to 65535"),
        ({"bornHost": "1.2.3.4:-1"}, "with a port up to 65535"),
        ({"bornHost": "nowhere"}, "has an invalid bornHost: 'nowhere' is not a host"),
    ],
)
def test_rows_that_cannot_be_stored_are_named(row: Row, words: str) -> None:
    schema = fields(
        "body binary", "topic string", "tags string", "keys array<string>", "queueId bigint",
        "properties map<string,string>", "flag bigint", "bornHost string", "uniqKey string",
        "reconsumeTimes bigint",
    )  # fmt: skip
    made = encoder(schema, [opened(max_message_size=1000)], queueSelector="column", preserve="true")
    sound: Row = {"body": b"", "topic": "A", "queueId": 0, "bornHost": "1.2.3.4:5"}
    kinds = {
        "body": pa.binary(), "topic": pa.string(), "tags": pa.string(),
        "keys": pa.list_(pa.string()), "queueId": pa.int64(),
        "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int64(),
        "bornHost": pa.string(), "uniqKey": pa.string(), "reconsumeTimes": pa.int64(),
    }  # fmt: skip
    list(made.encode(batch_of([sound, sound], **kinds)))
    with pytest.raises(RowError, match=words) as caught:
        list(made.encode(batch_of([sound, sound | row, sound], **kinds)))
    assert caught.value.row == 3


def test_no_two_messages_share_an_id_over_batches() -> None:
    made = encoder(fields("body string"), topic="T")
    batch = batch_of([{"body": ""}] * 5000, body=pa.string())
    ids = [row["uniqKey"] for _ in range(3) for row in encoded(made, batch)]
    assert len(set(ids)) == 15_000
    assert np.unique([len(key) for key in ids]).size == 1
