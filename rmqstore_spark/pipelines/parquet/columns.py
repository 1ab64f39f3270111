"""Choose the columns that a job writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqstore_spark.datasource.schema import COLUMN_TYPES, full_schema, project
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def columns_to_read(ddl: str | None, needed: tuple[str, ...]) -> tuple[StructType, tuple[str, ...]]:
    """Parse `--schema`. With one, a Spark session must be running, because Spark parses it.

    Args:
        ddl: the argument; None for all columns.
        needed: columns that the job reads in any case.

    Returns:
        The schema to read, under the source's own names; and the names of the columns to write, in
        their order, without topic.

    Raises:
        OptionError: the source does not have a column or type, or topic is the only column.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StringType, StructField, StructType

    try:
        chosen = full_schema() if ddl is None else StructType.fromDDL(ddl)
    except ParseException:
        chosen = None
    if not isinstance(chosen, StructType):
        raise OptionError(f'--schema must be like "queueOffset bigint, body string", not {ddl!r}.')
    wanted = project(chosen)
    written = tuple(name for name in wanted.columns if name != "topic")
    if not written:
        raise OptionError("--schema must contain a column besides topic, which becomes a folder.")
    read = dict.fromkeys((*wanted.columns, *needed))
    fields = [StructField(name, COLUMN_TYPES[name]) for name in read]
    if wanted.body_as_text:
        fields[wanted.columns.index("body")] = StructField("body", StringType())
    return StructType(fields), written
