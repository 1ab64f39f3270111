"""Which columns a job writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqstore_spark.datasource.schema import full_schema, project
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SCHEMA_HELP", "columns_to_read"]

SCHEMA_HELP = (
    'columns to write, as in .schema(...): "queueOffset bigint, body string"; topic and date are '
    "the folders (default: all)"
)


def columns_to_read(ddl: str | None, needed: tuple[str, ...]) -> tuple[StructType, tuple[str, ...]]:
    """Understand `--schema`.

    Args:
        ddl: what was given; None for all columns.
        needed: columns that the job reads in any case.

    Returns:
        The schema to read, and the names of the columns to write in their order, without topic.

    Raises:
        OptionError: a column or type that the source does not have, or no column but topic.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    everything = full_schema()
    try:
        chosen = everything if ddl is None else StructType.fromDDL(ddl)
    except ParseException:
        chosen = None
    if not isinstance(chosen, StructType):
        raise OptionError(f'--schema must be like "queueOffset bigint, body string", not {ddl!r}.')
    written = tuple(name for name in project(chosen).columns if name != "topic")
    if not written:
        raise OptionError("--schema must name a column besides topic, which is in the folders.")
    fields = list(chosen.fields)
    fields += [
        everything[name] for name in needed if name.lower() not in {f.name.lower() for f in fields}
    ]
    return StructType(fields), written
