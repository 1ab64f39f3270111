"""Find the columns that a sink writes when the write is planned, and read them in its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rmqstore_spark.datasource.options.sink_table import MessageOptions
from rmqstore_spark.datasource.schema import COLUMN_TYPES
from rmqstore_spark.errors import OptionError


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


def _is_texts(kind: DataType) -> bool:
    return isinstance(kind, ArrayType) and _is_text(kind.elementType)


def _is_text_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


@dataclass(frozen=True)
class SinkColumn:
    """A column that can be written.

    Args:
        name: the name that users write; not case-sensitive.
        kinds: the accepted types, in words.
        fits: returns whether a type is accepted.
        doc: what the column does, in Markdown.
        preserved: whether it is used only with `preserve=true`, and otherwise ignored.
    """

    name: str
    kinds: str
    fits: Callable[[DataType], bool]
    doc: str
    preserved: bool = False


SINK_COLUMNS: Final[tuple[SinkColumn, ...]] = (
    SinkColumn(
        "body",
        "binary or string",
        lambda kind: isinstance(kind, BinaryType) or _is_text(kind),
        "The body. Required and not null; may be empty.",
    ),
    SinkColumn(
        "topic",
        "string",
        _is_text,
        "The topic. Required and not null, unless option `topic` is set.",
    ),
    SinkColumn("tags", "string", _is_text, "The tag (property TAGS)."),
    SinkColumn(
        "keys",
        "array<string> or string",
        lambda kind: _is_texts(kind) or _is_text(kind),
        "The keys (property KEYS): an array of keys without spaces, or a string of keys separated "
        "by spaces.",
    ),
    SinkColumn(
        "properties",
        "map<string,string>",
        _is_text_map,
        "Other properties. Null values are left out. Columns `tags` and `keys` override TAGS and "
        "KEYS in this map. Properties of a delivery are left out (DELAY, REAL_TOPIC, REAL_QID, "
        "INNER_MULTI_*, TRAN_MSG, \\_\\_CRC32#, WAIT), and so is UNIQ_KEY unless `preserve` is "
        "set.",
    ),
    SinkColumn(
        "queueId",
        "integer",
        _is_integer,
        "The queue, with `queueSelector=column`; otherwise ignored.",
    ),
    SinkColumn(
        "shardingKey",
        "string",
        _is_text,
        "The key for `queueSelector=hash`: rows with the same key go to the same queue. Not "
        "stored.",
    ),
    SinkColumn(
        "delayTimeLevel",
        "integer",
        _is_integer,
        "The delay level: the message is delivered to its topic after the delay that the store's "
        "`messageDelayLevel` gives that level, 1 s to 2 h for 1 to 18. A higher level counts as "
        "the highest. Not delayed if null or 0.",
    ),
    SinkColumn("flag", "integer", _is_integer, "The producer's flag; 0 if null."),
    SinkColumn(
        "bornTimestamp",
        "timestamp or bigint",
        lambda kind: isinstance(kind, TimestampType | LongType),
        "When the message was created; a bigint is milliseconds since 1970. The current time if "
        "null.",
    ),
    SinkColumn(
        "bornHost",
        "string",
        _is_text,
        "With `preserve`: the producer's address, `ip:port` or `[ip]:port`; the executor's "
        "address if null.",
        preserved=True,
    ),
    SinkColumn(
        "reconsumeTimes",
        "integer",
        _is_integer,
        "With `preserve`: how often the message was redelivered; 0 if null.",
        preserved=True,
    ),
    SinkColumn(
        "uniqKey",
        "string",
        _is_text,
        "With `preserve`: the id that the producer gave the message. If null, the one in "
        "`properties`, or else a new one.",
        preserved=True,
    ),
)

_BY_NAME: Final = {column.name.lower(): column for column in SINK_COLUMNS}
_IGNORED: Final = frozenset(name.lower() for name in COLUMN_TYPES) - _BY_NAME.keys()
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "queueId": pa.int64(),
    "delayTimeLevel": pa.int64(),
    "flag": pa.int64(),
    "reconsumeTimes": pa.int64(),
}


@dataclass(frozen=True)
class SinkColumns:
    """The positions of the written columns in Spark's batches.

    Args:
        places: number of each column that is used, by its name.
    """

    places: Mapping[str, int]

    def read(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Extract the columns from one of Spark's batches, each in one Arrow type.

        Returns:
            By name: body binary, properties a map, keys a string or a list of strings,
            bornTimestamp int64 milliseconds, other numbers int64, all others string.
        """
        return {name: _as_written(name, batch.column(at)) for name, at in self.places.items()}


def _as_written(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if name == "bornTimestamp" and pa.types.is_timestamp(kind):
        # Counted from 1970 in UTC, whatever the session's time zone.
        return column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    if name == "bornTimestamp":
        return column
    if name == "keys" and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column.cast(pa.list_(pa.string()))
    wanted = _ARROW_TYPES.get(name, pa.string())
    return column if kind == wanted else column.cast(wanted)


def find_columns(schema: StructType, messages: MessageOptions) -> SinkColumns:
    """Find the columns of a write in its schema.

    Raises:
        OptionError: a column cannot be written, occurs twice, has a wrong type, or is missing.
    """
    places: dict[str, int] = {}
    seen: set[str] = set()
    for at, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in seen:
            raise OptionError(f"Two columns are called {field.name!r}: drop one.")
        seen.add(name)
        if name in _IGNORED:
            continue
        column = _BY_NAME.get(name)
        if column is None:
            raise OptionError(
                f"Column {field.name!r} cannot be written: drop it, or move it into body or "
                f"properties. {_right_ones()}"
            )
        if not _counts(column, messages):
            continue
        if not column.fits(field.dataType):
            raise OptionError(
                f"Column {column.name} must be {column.kinds}, not "
                f"{field.dataType.simpleString()}: cast it."
            )
        places[column.name] = at
    _check_required(places, messages)
    return SinkColumns(places)


def _counts(column: SinkColumn, messages: MessageOptions) -> bool:
    if column.name == "topic":
        return messages.topic is None
    if column.name == "queueId":
        return messages.queue_selector == "column"
    if column.name == "shardingKey":
        return messages.queue_selector != "roundrobin"
    return messages.preserve or not column.preserved


def _check_required(places: Mapping[str, int], messages: MessageOptions) -> None:
    if "body" not in places:
        raise OptionError(f"Column body is missing. {_right_ones()}")
    if "topic" not in places and messages.topic is None:
        raise OptionError("No topic given: set option topic or add a column topic.")
    if "queueId" not in places and messages.queue_selector == "column":
        raise OptionError("queueSelector=column needs a column queueId.")


def _right_ones() -> str:
    listed = ", ".join(f"{column.name} ({column.kinds})" for column in SINK_COLUMNS)
    return (
        f"The columns that can be written are: {listed}. Other columns of the source are ignored."
    )
