"""The columns of `format("rmqstore")` in Spark's types, and a user's choice of them.

Spark accepts a batch only if its Arrow schema equals Spark's own mapping, including names, order
and nullability. So a user's `.schema(...)` is followed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqstore_spark.datasource.spark_api import arrow_schema
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN_TYPES: dict[str, DataType] = {
    "brokerName": StringType(),
    "topic": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "physicalOffset": LongType(),
    "msgId": StringType(),
    "uniqKey": StringType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "bornTimestamp": TimestampType(),
    "bornHost": StringType(),
    "storeTimestamp": TimestampType(),
    "storeHost": StringType(),
    "flag": IntegerType(),
    "sysFlag": IntegerType(),
    "bodyCRC": IntegerType(),
    "reconsumeTimes": IntegerType(),
    "preparedTransactionOffset": LongType(),
    "storeSize": IntegerType(),
}
"""Name and type of each column, in the order of a row."""

NEVER_NULL = frozenset(COLUMN_TYPES) - {
    "uniqKey",
    "tags",
    "keys",
    "bornTimestamp",
    "storeTimestamp",
}
"""Columns that a user's schema may declare NOT NULL."""

_NAMES = {name.lower(): name for name in COLUMN_TYPES}


@dataclass(frozen=True)
class Projection:
    """The requested columns, and how Spark expects them.

    Args:
        columns: the source's own names, in the requested order.
        body_as_text: whether `body` is requested as a string.
        schema: the schema that Spark knows.
    """

    columns: tuple[str, ...]
    body_as_text: bool
    schema: StructType

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema that Spark expects of every batch."""
        return arrow_schema(self.schema)


def full_schema() -> StructType:
    """Return all columns."""
    return StructType([StructField(name, kind) for name, kind in COLUMN_TYPES.items()])


def project(schema: StructType) -> Projection:
    """Check a schema: the full one, or a user's choice of columns.

    Names are not case-sensitive, as in Spark.

    Raises:
        OptionError: the source does not have a column, or not in that type.
    """
    columns: list[str] = []
    as_text = False
    for field in schema.fields:
        name = _NAMES.get(field.name.lower())
        if name is None:
            raise OptionError(f"Unknown column {field.name!r}. {_right_ones()}")
        if field.dataType != COLUMN_TYPES[name] and not _is_text(name, field.dataType):
            raise OptionError(
                f"Column {name} cannot be read as {field.dataType.simpleString()}. {_right_ones()}"
            )
        if not field.nullable and name not in NEVER_NULL:
            raise OptionError(f"Column {name} can be null: remove NOT NULL from its schema.")
        if name in columns:
            raise OptionError(f"The schema contains column {name} twice.")
        columns.append(name)
        as_text = as_text or _is_text(name, field.dataType)
    return Projection(tuple(columns), as_text, schema)


def _is_text(name: str, kind: DataType) -> bool:
    return name == "body" and kind == StringType()


def _right_ones() -> str:
    listed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMN_TYPES.items())
    return f"The columns are: {listed}; body can also be read as string."
