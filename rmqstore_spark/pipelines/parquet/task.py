"""Write one piece of work in a task of the backfill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.partitions import read_partition
from rmqstore_spark.datasource.schema import project
from rmqstore_spark.pipelines.parquet import pieces
from rmqstore_spark.pipelines.parquet.files import FileFormat, PartitionedWriter
from rmqstore_spark.pipelines.parquet.run_folder import Attempt, RunFolder
from rmqstore_spark.pipelines.parquet.statistics import read_back
from rmqstore_spark.pipelines.parquet.tally import Tally

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PieceItem: TypeAlias = tuple[int, Mapping[str, Any]]
"""A piece's number, and the piece as JSON."""


@dataclass(frozen=True)
class BackfillTask:
    """Reads a piece and writes its files.

    Args:
        output: the folders of the backfill.
        options: the source's options.
        schema: the columns to read.
        columns: the columns to write, as `PartitionedWriter` takes them.
        file_format: the format of the files.
        run: a name for this run.
    """

    output: RunFolder
    options: Mapping[str, str]
    schema: StructType
    columns: tuple[str, ...] | pa.Schema
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
        files = tuple(read_back(self.output.fs, path, file) for file in writer.finished)
        attempt = Attempt(number, folder, files, tally)
        self.output.finish_attempt(attempt)
        return attempt.to_json()
