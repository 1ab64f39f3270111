"""Delta and Iceberg tables of the tests, read by the programs that others use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.support.stores.expected import queue_key

__all__ = ["FORMATS", "READERS", "LakeHouse", "rows_of"]

FORMATS = ("delta", "iceberg")
READERS = ("its package", "duckdb", "polars", "duckdb, the files alone")

Row = dict[str, Any]


@dataclass(frozen=True)
class LakeHouse:
    """A table of one of the formats in a folder of its own.

    Args:
        to: the format.
        folder: where the table is, or will be.
    """

    to: str
    folder: Path

    @property
    def arguments(self) -> list[str]:
        """OUTPUT, and the options of the jobs."""
        if self.to == "delta":
            return [str(self.folder / "table"), "--to", "delta"]
        return ["rmq.messages", "--to", "iceberg", "--warehouse", str(self.folder)]

    @property
    def data(self) -> Path:
        """The folder of the table."""
        return self.folder / ("table" if self.to == "delta" else "rmq/messages")

    @property
    def catalog(self) -> Catalog:
        return load_catalog(
            "rmqstore", type="sql", uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=str(self.folder),
        )  # fmt: skip

    def iceberg(self) -> Table:
        return self.catalog.load_table("rmq.messages")

    def delta(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.data)

    def files(self) -> list[str]:
        """Return the files of the table's current version."""
        if self.to == "delta":
            return sorted(self.delta().file_uris())
        return sorted(task.file.file_path for task in self.iceberg().scan().plan_files())

    def commits(self) -> int:
        """Return how many commits have appended files."""
        if self.to == "delta":
            return sum(each["operation"] == "WRITE" for each in self.delta().history())
        return len(self.iceberg().snapshots())

    def read(self, reader: str = "its package", where: str = "true") -> pa.Table:
        """Return the rows, read by one of READERS.

        Args:
            where: a condition in SQL; not for the table's own package.
        """
        if reader == "its package":
            if self.to == "delta":
                return self.delta().to_pyarrow_table()
            return self.iceberg().scan().to_arrow()
        if reader == "polars":
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # it warns of its own absence
                scan = (
                    pl.scan_delta(str(self.data))
                    if self.to == "delta"
                    else pl.scan_iceberg(self.iceberg())
                )
                return scan.filter(pl.sql_expr(where)).collect().to_arrow()
        rows: Any
        with duckdb.connect() as connection:
            # Its extensions for these tables are downloaded when they are first used: not in tests.
            if reader == "duckdb":
                rows = (
                    self.delta().to_pyarrow_dataset()
                    if self.to == "delta"
                    else self.iceberg().scan().to_arrow_batch_reader()
                )
                connection.register("rows", rows)
            else:
                rows = connection.read_parquet(self.files(), hive_partitioning=True)
                rows.create_view("rows")
            connection.execute("SET TimeZone = 'UTC'")
            return connection.sql(f"SELECT * FROM rows WHERE {where}").to_arrow_table()


def rows_of(table: pa.Table) -> list[Row]:
    """Return rows as dictionaries, by queue and offset."""
    rows: list[Row] = table.to_pylist()
    for row in rows:
        if isinstance(row.get("properties"), list):
            pairs = [tuple(p.values()) if isinstance(p, dict) else p for p in row["properties"]]
            row["properties"] = dict(pairs)
    return sorted(rows, key=queue_key)
