"""Write one piece of work in a task of the backfill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.parquet as pq

from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.partitions import read_partition
from rmqstore_spark.datasource.schema import project
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.parquet import pieces
from rmqstore_spark.pipelines.parquet.files import FileFormat, PartitionedWriter
from rmqstore_spark.pipelines.parquet.output import Attempt, Output
from rmqstore_spark.pipelines.parquet.tally import Tally

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BackfillTask", "PieceItem"]

PieceItem: TypeAlias = tuple[int, Mapping[str, Any]]
"""A piece's number, and the piece as JSON."""


@dataclass(frozen=True)
class BackfillTask:
    """Reads a piece and writes its files.

    Args:
        output: the output folder.
        options: the source's options.
        schema: the columns to read.
        columns: the columns to write.
        file_format: the format of the files.
        run: a name for this run.
    """

    output: Output
    options: Mapping[str, str]
    schema: StructType
    columns: tuple[str, ...]
    file_format: FileFormat
    run: str

    def __call__(self, item: PieceItem) -> dict[str, Any]:
        """Make an attempt at a piece.

        Returns:
            The attempt, as JSON.

        Raises:
            RmqStoreError: the store cannot be read, or a file does not hold the written rows.
        """
        number, stored = item
        piece = pieces.from_json(stored, self.run)
        options = parse_options(self.options, streaming=False)
        folder = self.output.new_attempt(number)
        path = self.output.attempt_path(folder)
        tally = Tally()
        with PartitionedWriter(
            self.output.fs,
            path,
            f"part-{number:05d}-{folder[-8:]}",
            self.columns,
            self.file_format,
        ) as writer:
            for batch in read_partition(piece, options, project(self.schema)):
                tally.add(batch)
                writer.write(batch)
        for file in writer.finished:
            self._check(f"{path}/{file.path}", file.rows)
        attempt = Attempt(number, folder, tuple(writer.finished), tally)
        self.output.finish_attempt(attempt)
        return attempt.to_json()

    def _check(self, path: str, rows: int) -> None:
        with self.output.fs.open(path, "rb") as file:
            found = pq.read_metadata(file).num_rows
        if found != rows:
            raise RmqStoreError(f"{path} should have {rows:,} rows, but has {found:,}.")
