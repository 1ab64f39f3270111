"""How a catalog table's options reach the source.

`CREATE TABLE t USING rmqstore OPTIONS (...)` shows the options to a Python source once, when Spark
asks it for the schema. A later query on the table hands over the schema that the catalog kept, and
of the options nothing. So the options are written into the metadata of the schema's first column,
and read from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from rmqstore_spark.datasource.option_table import READING

__all__ = ["options_in", "query_options", "source_options", "with_options"]

_KEY = "rmqstore.options"
_OPTION_PREFIX = "option."


def source_options(given: Mapping[str, str]) -> dict[str, str]:
    """Pick the source's own options out of what Spark hands over.

    On CREATE TABLE Spark mixes them with the table's properties (provider, owner, location,
    comment and the user's own); the options stand there a second time with a prefix, all but the
    path.
    """
    if not _is_table(given):
        return dict(given)
    found = {
        name[len(_OPTION_PREFIX) :]: value
        for name, value in given.items()
        if name.lower().startswith(_OPTION_PREFIX)
    }
    if "path" in given:
        found["path"] = given["path"]
    return found


def with_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """Write a new table's options into its schema; leave any other schema as it is."""
    if not _is_table(given):
        return schema
    first, *others = schema.fields
    kept = StructField(
        first.name, first.dataType, first.nullable, {_KEY: json.dumps(source_options(given))}
    )
    return StructType([kept, *others])


def options_in(schema: StructType) -> dict[str, str]:
    """Read back what `with_options` wrote; empty for a schema without it."""
    for field in schema.fields:
        if _KEY in field.metadata:
            return dict(json.loads(field.metadata[_KEY]))
    return {}


def query_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Put the options of one query together: its own before those of the table that it reads.

    A query that names a path or endpoint of its own reads no table, wherever its schema comes from.
    """
    own = {_canonical(name): (name, value) for name, value in source_options(given).items()}
    if own.keys().isdisjoint(("path", "endpoint")):
        for name, value in options_in(schema).items():
            own.setdefault(_canonical(name), (name, value))
    return dict(own.values())


def _canonical(name: str) -> str:
    option = READING.named(name)
    return option.name if option else name.lower()


def _is_table(given: Mapping[str, str]) -> bool:
    return "provider" in given and "owner" in given
