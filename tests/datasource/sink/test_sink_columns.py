from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.options.sink_table import MessageOptions
from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.sink.columns import SinkColumns, find_columns
from rmqstore_spark.errors import OptionError

ENDPOINT = "rmq://127.0.0.1:10921"


def sink_options(**given: str) -> MessageOptions:
    return parse_sink_options({"endpoint": ENDPOINT, **given}, streaming=False).messages


def fields(*columns: str) -> StructType:
    """A schema of `name type` texts, without a JVM."""
    from pyspark.sql import types

    kinds: dict[str, Any] = {
        "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(),
        "bigint": types.LongType(), "smallint": types.ShortType(), "double": types.DoubleType(),
        "timestamp": types.TimestampType(), "timestamp_ntz": types.TimestampNTZType(),
        "array<string>": types.ArrayType(types.StringType()),
        "array<int>": types.ArrayType(types.IntegerType()),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
        "date": types.DateType(), "boolean": types.BooleanType(),
    }  # fmt: skip
    made = StructType()
    for column in columns:
        name, _, kind = column.rpartition(" ")
        made = made.add(name, kinds[kind])
    return made


def found(*columns: str, **given: str) -> dict[str, int]:
    return dict(find_columns(fields(*columns), sink_options(**given)).places)


def test_columns_are_found_in_any_order_and_case() -> None:
    columns = ("TAGS string", "Body binary", "topic string", "keys array<string>", "FLAG smallint")
    assert found(*columns) == {"tags": 0, "body": 1, "topic": 2, "keys": 3, "flag": 4}
    assert found("body string", topic="T") == {"body": 0}
    assert found("body string", "keys string", "topic string", topic="T") == {"body": 0, "keys": 1}


def test_what_reading_gives_can_be_written_back() -> None:
    schema = full_schema()
    names = schema.fieldNames()
    written = {"topic", "tags", "keys", "body", "properties", "bornTimestamp", "flag"}
    plain = find_columns(schema, sink_options())
    assert plain.places == {name: names.index(name) for name in written}
    kept = find_columns(schema, sink_options(preserve="true", queueSelector="column"))
    more = {"queueId", "uniqKey", "bornHost", "reconsumeTimes"}
    assert kept.places == {name: names.index(name) for name in written | more}


def test_columns_that_do_not_count_may_be_anything() -> None:
    columns = ("body string", "topic string", "queueId double", "uniqKey int", "msgId int")
    assert found(*columns) == {"body": 0, "topic": 1}
    assert found("body string", "topic double", topic="T") == {"body": 0}


@pytest.mark.parametrize(
    ("columns", "given", "words"),
    [
        (("topic string",), {}, "Column body is missing"),
        (("body string",), {}, "No topic given: set option topic or add a column topic"),
        (("body string", "topic string", "price double"), {}, "Column 'price' cannot be written"),
        (("body string", "value string"), {"topic": "T"}, r"The columns .* body \(binary or str"),
        (("body string", "BODY binary"), {"topic": "T"}, "Two columns are called 'BODY'"),
        (("body int",), {"topic": "T"}, "Column body must be binary or string, not int: cast it"),
        (("body string", "topic int"), {}, "Column topic must be string, not int"),
        (("body string", "tags array<string>"), {"topic": "T"}, "Column tags must be string"),
        (("body string", "keys array<int>"), {"topic": "T"}, "keys must be array<string> or str"),
        (
            ("body string", "properties map<string,int>"),
            {"topic": "T"},
            "properties must be map<string,string>, not map<string,int>",
        ),
        (("body string", "flag boolean"), {"topic": "T"}, "flag must be integer, not boolean"),
        (
            ("body string", "bornTimestamp timestamp_ntz"),
            {"topic": "T"},
            "must be timestamp or bigint, not timestamp_ntz: cast it",
        ),
        (("body string", "shardingKey int"), {"topic": "T"}, "shardingKey must be string"),
        (("body string",), {"topic": "T", "queueSelector": "column"}, "needs a column queueId"),
        (
            ("body string", "queueId string"),
            {"topic": "T", "queueSelector": "column"},
            "queueId must be integer",
        ),
        (
            ("body string", "bornHost binary"),
            {"topic": "T", "preserve": "true"},
            "bornHost must be string",
        ),
    ],
)
def test_wrong_columns(columns: tuple[str, ...], given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        found(*columns, **given)


def test_each_column_comes_in_one_type() -> None:
    names = ["body", "topic", "keys", "queueId", "bornTimestamp", "properties"]
    columns = SinkColumns({name: at for at, name in enumerate(names)})
    moment = datetime(2024, 3, 31, 2, 30, 0, 123456, timezone.utc)
    text_map = pa.map_(pa.string(), pa.string())
    for text, zone in ((pa.string(), "UTC"), (pa.large_string(), "America/St_Johns")):
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(["é"], text),
                pa.array(["T"], text),
                pa.array([["a"]], pa.list_(text)),
                pa.array([3], pa.int16()),
                pa.array([moment], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone)),
                pa.array([[("k", "v")]], pa.map_(text, text)),
            ],
            names=names,
        )
        read = columns.read(batch)
        assert [column.type for column in read.values()] == [
            pa.binary(), pa.string(), pa.list_(pa.string()), pa.int64(), pa.int64(), text_map,
        ]  # fmt: skip
        assert [column[0].as_py() for column in read.values()] == [
            "é".encode(), "T", ["a"], 3, 1711852200123, [("k", "v")],
        ]  # fmt: skip
