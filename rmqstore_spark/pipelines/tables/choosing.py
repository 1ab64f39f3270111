"""Find the table of a job, or create it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqstore_spark.files.open import local_path
from rmqstore_spark.pipelines.tables.arguments import DELTA, TableArguments
from rmqstore_spark.pipelines.tables.table import LakeTable, reported

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def find_table(arguments: TableArguments, schema: pa.Schema) -> LakeTable | None:
    """Open the table of a job; None if it does not exist.

    Args:
        schema: the columns that the job writes.

    Raises:
        OptionError: the table has other columns or partitions, or an option is wrong.
        RmqStoreError: the table cannot be read, or a package is missing.
    """
    if arguments.to == DELTA:
        from rmqstore_spark.pipelines.tables.delta import DeltaTable

        return DeltaTable.find(*_delta(arguments, schema))
    from rmqstore_spark.pipelines.tables.iceberg import IcebergTable

    return IcebergTable.find(_catalog(arguments), arguments.output, schema)


def create_table(arguments: TableArguments, schema: pa.Schema) -> LakeTable:
    """Create the table of a job, or open the one that somebody else has just created.

    Args:
        schema: the columns that the job writes.

    Raises:
        OptionError: the table has other columns or partitions, or an option is wrong.
        RmqStoreError: the table cannot be created.
    """
    if arguments.to == DELTA:
        from rmqstore_spark.pipelines.tables.delta import DeltaTable

        return DeltaTable.create(*_delta(arguments, schema))
    from rmqstore_spark.pipelines.tables.iceberg import IcebergTable

    return IcebergTable.create(_catalog(arguments), arguments.output, schema)


def _delta(arguments: TableArguments, schema: pa.Schema) -> tuple[str, pa.Schema, dict[str, str]]:
    local = local_path(arguments.output)
    url = arguments.output if local is None else os.path.abspath(local)
    return url, schema, arguments.storage_options()


def _catalog(arguments: TableArguments) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given = arguments.storage_options()
    with reported("The catalog cannot be opened"):
        if arguments.warehouse is None:
            return load_catalog(arguments.catalog, **given)
        folder = Path(local_path(arguments.warehouse) or arguments.warehouse).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        kept = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
        return load_catalog("rmqstore", **{**kept, **given})
