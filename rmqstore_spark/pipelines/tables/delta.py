"""Tables of Delta Lake, through the package `deltalake`.

Application and version are those of Delta's own transaction identifiers (action `txn`), so a commit
of the same application that came first is a conflict. Commits that only append do not conflict with
those of others: the package repeats them itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.tables.table import (
    PARTITIONED_BY,
    ConflictError,
    DataFile,
    check_columns,
    check_partitions,
    reported,
)


class DeltaTable:
    """A Delta table, which exists.

    Args:
        url: its folder, absolute.
        schema: the columns that the job writes.
        options: storage options of the package.

    Raises:
        OptionError: the table has other columns or partitions, or rules that only rows written
            through its own engine would follow.
        RmqStoreError: the table cannot be read.
    """

    def __init__(self, url: str, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self.name = self.location = url
        self._schema = schema
        names = [name for name in schema.names if name not in PARTITIONED_BY]
        self.file_schema = pa.schema([schema.field(name) for name in names])
        with reported(f"The Delta table {url} cannot be read"):
            self._table = deltalake.DeltaTable(url, storage_options=dict(options))
        self._check()

    @classmethod
    def find(cls, url: str, schema: pa.Schema, options: Mapping[str, str]) -> DeltaTable | None:
        """Open a table; None if there is none."""
        with reported(f"The folder {url} cannot be read"):
            found = deltalake.DeltaTable.is_deltatable(url, dict(options))
        return cls(url, schema, options) if found else None

    @classmethod
    def create(cls, url: str, schema: pa.Schema, options: Mapping[str, str]) -> DeltaTable:
        """Create a table, or open the one that somebody else has just created."""
        with reported(f"The Delta table {url} cannot be created"):
            deltalake.DeltaTable.create(
                url,
                deltalake.Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(PARTITIONED_BY),
                storage_options=dict(options),
            )
        return cls(url, schema, options)

    def refresh(self) -> None:
        """Read the table's latest state."""
        with reported(f"The Delta table {self.name} cannot be read"):
            self._table.update_incremental()
        self._check()

    def version_of(self, application: str) -> int | None:
        """Return the last version that an application committed; None before its first."""
        return self._table.transaction_version(application)

    def append(self, files: Sequence[DataFile], application: str, version: int) -> None:
        """Append files in one commit.

        Raises:
            ConflictError: another commit of the application came first, or the table was changed.
        """
        now = int(time.time() * 1000)
        added: list[Any] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values={"topic": file.partition.topic, "date": file.partition.date},
                modification_time=now,
                data_change=True,
                stats=file.statistics or "{}",
            )
            for file in files
        ]
        transaction = deltalake.Transaction(application, version)
        try:
            self._table.create_write_transaction(
                added,
                "append",
                self._table.schema(),
                list(PARTITIONED_BY),
                commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
            )
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error

    def _check(self) -> None:
        metadata = self._table.metadata()
        check_partitions(self.name, tuple(metadata.partition_columns))
        check_columns(
            self.name,
            _types(self._table.schema()),
            _types(deltalake.Schema.from_arrow(self._schema)),
        )
        unknown = sorted(
            key
            for key, value in metadata.configuration.items()
            if (key == "delta.columnMapping.mode" and value != "none")
            or key.startswith("delta.constraints.")
        )
        if unknown:
            raise OptionError(
                f"The Delta table {self.name} has {', '.join(unknown)}, which this job does not "
                "support. Use another table."
            )


def _types(schema: deltalake.Schema) -> dict[str, str]:
    """Return the types of columns as text."""
    return {
        field.name: f"{_type(field.type)}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    }


def _type(kind: Any) -> str:
    if isinstance(kind, deltalake.schema.ArrayType):
        return f"array<{_type(kind.element_type)}>"
    if isinstance(kind, deltalake.schema.MapType):
        return f"map<{_type(kind.key_type)}, {_type(kind.value_type)}>"
    return str(kind.type)
