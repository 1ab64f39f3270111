from __future__ import annotations

import re

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from rmqstore_spark.datasource.schema import COLUMN_TYPES, full_schema, project
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.columns import COLUMNS


def of(*fields: StructField) -> StructType:
    return StructType(list(fields))


def test_the_columns_are_the_readers_as_spark_maps_them() -> None:
    assert list(COLUMN_TYPES) == list(COLUMNS)
    assert to_arrow_schema(full_schema(), timezone="UTC").equals(pa.schema(COLUMNS))
    assert project(full_schema()).arrow_schema().equals(pa.schema(COLUMNS))


def test_a_users_choice_and_order() -> None:
    asked = of(StructField("body", COLUMN_TYPES["body"]), StructField("topic", StringType()))
    projection = project(asked)
    assert projection.columns == ("body", "topic")
    assert not projection.body_as_text
    assert projection.arrow_schema().names == ["body", "topic"]


def test_body_as_text() -> None:
    projection = project(of(StructField("body", StringType())))
    assert projection.body_as_text
    assert projection.arrow_schema().types == [pa.string()]


def test_names_in_any_case_keep_the_users_spelling() -> None:
    projection = project(of(StructField("QUEUEID", IntegerType())))
    assert projection.columns == ("queueId",)
    assert projection.arrow_schema().names == ["QUEUEID"]


def test_no_columns_at_all() -> None:
    assert project(of()).columns == ()


def test_not_null_where_it_holds() -> None:
    projection = project(of(StructField("topic", StringType(), nullable=False)))
    assert not projection.arrow_schema().field("topic").nullable


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("partition", IntegerType()), "Unknown column 'partition'"),
        (StructField("queueId", LongType()), "Column queueId cannot be read as bigint"),
        (StructField("tags", StringType(), nullable=False), "Column tags can be null"),
        (StructField("bornTimestamp", TimestampNTZType()), "cannot be read as timestamp_ntz"),
    ],
)
def test_what_is_refused(field: StructField, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        project(of(field))
    if field.nullable:
        expected = ", ".join(f"{n} {t.simpleString()}" for n, t in COLUMN_TYPES.items())
        assert re.search(re.escape(expected), str(caught.value))


def test_a_column_asked_for_twice() -> None:
    twice = of(StructField("topic", StringType()), StructField("TOPIC", StringType()))
    with pytest.raises(OptionError, match="The schema contains column topic twice"):
        project(twice)
