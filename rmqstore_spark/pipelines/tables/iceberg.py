"""Tables of Iceberg, through the package `pyiceberg`.

An application's last version is a property of the table, set in the commit that appends the files:
unlike the properties of a snapshot, it stays when snapshots expire. The snapshot has both too, for
people who look at the table's history. A commit requires that no other snapshot came in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.parquet.files import WITHOUT_BOUNDS
from rmqstore_spark.pipelines.tables.table import (
    PARTITIONED_BY,
    ConflictError,
    DataFile,
    check_columns,
    check_partitions,
    reported,
)

_PREFIX: Final = "rmqstore.version."
_APPLICATION, _VERSION = "rmqstore.application", "rmqstore.version"


class IcebergTable:
    """An Iceberg table, which exists.

    Args:
        table: the table.
        schema: the columns that the job writes.

    Raises:
        OptionError: the table has other columns or partitions.
    """

    def __init__(self, table: Table, schema: pa.Schema) -> None:
        self.name = ".".join(table.name())
        self.location = table.location()
        self._table = table
        self._schema = schema
        self._check()

    @classmethod
    def find(cls, catalog: Catalog, name: str, schema: pa.Schema) -> IcebergTable | None:
        """Open a table; None if there is none."""
        with reported(f"The table {name} cannot be read"):
            try:
                return cls(catalog.load_table(name), schema)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @classmethod
    def create(cls, catalog: Catalog, name: str, schema: pa.Schema) -> IcebergTable:
        """Create a table, or open the one that somebody else has just created."""
        with reported(f"The table {name} cannot be created"):
            catalog.create_namespace_if_not_exists(catalog.namespace_from(name))
            # With its partitions at once: a table without them would be refused later.
            with (
                contextlib.suppress(TableAlreadyExistsError, CommitFailedException),
                catalog.create_table_transaction(name, schema) as creation,
                creation.update_spec() as partitions,
            ):
                for column in PARTITIONED_BY:
                    partitions.add_field(column, IdentityTransform(), column)
            return cls(catalog.load_table(name), schema)

    @property
    def file_schema(self) -> pa.Schema:
        """The table's columns with their ids, by which readers find them in a file."""
        return pa.schema([_small(field) for field in self._table.schema().as_arrow()])

    def refresh(self) -> None:
        """Read the table's latest state."""
        with reported(f"The table {self.name} cannot be read"):
            self._table.refresh()
        self._check()

    def version_of(self, application: str) -> int | None:
        """Return the last version that an application committed; None before its first."""
        found = self._table.properties.get(_PREFIX + application)
        if found is not None and not found.isdecimal():
            raise RmqStoreError(
                f"The property {_PREFIX}{application} of the table {self.name} should be a number, "
                f"not {found!r}. Restore it before the job continues."
            )
        return None if found is None else int(found)

    def append(self, files: Sequence[DataFile], application: str, version: int) -> None:
        """Append files in one commit.

        Raises:
            ConflictError: another snapshot came first.
        """
        table = self._table
        believed = {**table.properties, **self._ways()}
        table.metadata = table.metadata.model_copy(update={"properties": believed})
        try:
            with table.transaction() as transaction:
                transaction.set_properties({_PREFIX + application: str(version)})
                transaction.add_files(
                    [f"{self.location}/{file.path}" for file in files],
                    snapshot_properties={_APPLICATION: application, _VERSION: str(version)},
                    check_duplicate_files=False,  # their names are new
                )
        except CommitFailedException as error:
            raise ConflictError(str(error)) from error

    def _ways(self) -> dict[str, str]:
        """Return properties that only this process takes the table to have.

        The package would repeat a commit by itself, behind whatever snapshot came first, even one
        of the same version. And it would warn of each column in each file that has no bounds.
        """
        unbounded = [
            name
            for name in self._table.schema().column_names
            if "." in name or name in WITHOUT_BOUNDS
        ]
        column = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
        return {
            TableProperties.COMMIT_NUM_RETRIES: "0",
            **{f"{column}.{name}": "none" for name in unbounded},
        }

    def _check(self) -> None:
        schema = self._table.schema()
        found = []
        for field in self._table.spec().fields:
            source = schema.find_column_name(field.source_id)
            plain = isinstance(field.transform, IdentityTransform)
            found.append(f"{source}" if plain else f"{field.transform}({source})")
        check_partitions(self.name, tuple(found))
        check_columns(
            self.name,
            {
                field.name: f"{_small(field).type}{'' if field.nullable else ' not null'}"
                for field in schema.as_arrow()
            },
            {field.name: f"{_small(field).type}" for field in self._schema},
        )


def _small(field: pa.Field) -> pa.Field:
    """Return a field whose strings and lists have offsets of 32 bits, as the source's have."""
    kind: Any = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field).with_name("element"))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    return field.with_type(kind)
