"""The columns of a table, and how an existing one must look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.columns import COLUMNS

PARTITIONED_BY: Final = ("topic", "date")
"""Names of the columns by which each table is partitioned."""


def table_schema(columns: tuple[str, ...], *, body_as_text: bool) -> pa.Schema:
    """Return the schema of a table.

    Args:
        columns: names of the columns to write, without topic.
        body_as_text: whether `body` is written as a string.
    """
    types = {**COLUMNS, "body": pa.string()} if body_as_text else COLUMNS
    fields = [pa.field(name, types[name]) for name in columns]
    return pa.schema([*fields, pa.field("topic", pa.string()), pa.field("date", pa.date32())])


def check_columns(table: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check that a table has the columns that a job writes.

    Args:
        table: the table's name, for the error.
        found, wanted: types by name of column, as text.

    Raises:
        OptionError: a column is missing, or there is another one, or its type differs.
    """
    wrong = [
        f"{name} is {found.get(name, 'missing')} there, and {wanted.get(name, 'missing')} here"
        for name in [*wanted, *sorted(found.keys() - wanted.keys())]
        if found.get(name) != wanted.get(name)
    ]
    if wrong:
        raise OptionError(
            f"The table {table} has other columns: {'; '.join(wrong)}. Set --schema to the "
            "table's columns, or use another table."
        )


def check_partitions(table: str, found: tuple[str, ...]) -> None:
    """Check how a table is partitioned.

    Args:
        table: the table's name, for the error.
        found: how the table is partitioned, in its order.

    Raises:
        OptionError: not by topic and date.
    """
    if found != PARTITIONED_BY:
        there = f"by {', '.join(found)}" if found else "not"
        raise OptionError(
            f"The table {table} is partitioned {there}, but must be by topic, date. Use another "
            "table."
        )
