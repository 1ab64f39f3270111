"""Columns of messages become records, as the sink, the command and the engine make them."""

from __future__ import annotations

import socket

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.record.columns import COLUMNS, build_batch
from rmqstore_spark.layout.record.encode import EncodedRecords, encode_records
from rmqstore_spark.layout.record.format import decode_records
from rmqstore_spark.layout.record.properties import MAP_TYPE, encode_properties
from rmqstore_spark.produce.encoder import MessageEncoder
from rmqstore_spark.produce.queue_choice import Queues, Router
from rmqstore_spark.produce.records import (
    Origin,
    born_host,
    own_address,
    record_batch,
    unknown_host,
)

NOW = 1_700_000_000_123


def encoder(*, keep_ids: bool = False) -> MessageEncoder:
    router = Router(lambda _: Queues.of([4]))
    return MessageEncoder(router, clock=lambda: NOW, keep_ids=keep_ids)


def rows_of(records: EncodedRecords) -> list[dict[str, object]]:
    decoded = decode_records(records.data, records.starts, records.sizes)
    rows: list[dict[str, object]] = build_batch(decoded, tuple(COLUMNS), broker="b").to_pylist()
    return rows


def test_an_unknown_address_is_not_passed_off_as_another_one() -> None:
    assert born_host(socket.inet_aton("10.1.2.3")) == "10.1.2.3:0"
    v6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    assert born_host(v6) == "[2001:db8::1]:0"
    assert born_host(None) == unknown_host(v6=False) == "0.0.0.0:0"
    assert unknown_host(v6=True) == "[::]:0"


def test_nulls_and_missing_columns_get_the_same_defaults() -> None:
    bare = {"topic": pa.array(["T"]), "body": pa.array([b"x"])}
    nulls = {
        **bare,
        **{name: pa.array([None], pa.int64()) for name in ("flag", "reconsumeTimes", "queueId")},
        **{name: pa.array([None], pa.string()) for name in ("tags", "keys", "bornHost", "uniqKey")},
        "properties": pa.array([None], MAP_TYPE),
        "bornTimestamp": pa.array([None], pa.int64()),
    }
    (first,), (second,) = (
        rows_of(encoder().prepare(columns).encode(store_host_v6=False)) for columns in (bare, nulls)
    )
    ids = [dict(row["properties"]).pop("UNIQ_KEY") for row in (first, second)]  # type: ignore[call-overload]
    assert [len(key) for key in ids] == [len(str(first["uniqKey"]))] * 2
    for row in (first, second):
        for name in ("uniqKey", "properties", "msgId"):
            del row[name]
    assert first == second
    assert str(first["bornHost"]).removesuffix(":0") == born_host(own_address()).removesuffix(":0")


def test_an_encoded_message_is_the_record_of_its_columns() -> None:
    columns = {
        "topic": pa.array(["T", "T"]), "body": pa.array([b"x", b"y"]),
        "properties": pa.array([[("UNIQ_KEY", "A"), ("p", "1")], [("UNIQ_KEY", "B")]], MAP_TYPE),
        "queueId": pa.array([2, 3]), "flag": pa.array([-7, 1]),
        "bornTimestamp": pa.array([5, 6]), "bornHost": pa.array(["1.2.3.4:5", "[::1]:6"]),
        "reconsumeTimes": pa.array([3, 0]),
    }  # fmt: skip
    ready = encoder(keep_ids=True).prepare(columns)
    given = {
        name: column.cast(pa.int32()) if name in ("queueId", "flag", "reconsumeTimes") else column
        for name, column in columns.items()
    } | {"properties": encode_properties(columns["properties"])}
    wanted = record_batch(given, Origin(0, "9.9.9.9:9"), "[::]:0")
    both = encode_records(wanted).data
    assert np.array_equal(ready.encode(store_host_v6=True).data, both)
    second = ready.encode(store_host_v6=True, rows=np.array([1])).data
    assert np.array_equal(both[-len(second) :], second)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"flag": pa.array([0, 1 << 31])}, "2147483648 in column flag"),
        ({"reconsumeTimes": pa.array([0, -1])}, "-1 in column reconsumeTimes"),
        ({"bornHost": pa.array(["1.2.3.4:5", "nowhere"])}, "invalid bornHost"),
        ({"queueId": pa.array([0, 4])}, "queueId 4, but topic 'T' has queues 0 to 3"),
    ],
)
def test_a_message_that_cannot_be_stored_is_named(column: dict[str, pa.Array], words: str) -> None:
    columns = {"topic": pa.array(["T", "T"]), "body": pa.array([b"", b""])}
    with pytest.raises(RowError, match=words) as caught:
        encoder().prepare(columns | column)
    assert caught.value.row == 1
