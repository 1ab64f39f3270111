"""Write each batch of a stream to a table once.

Tasks write Parquet and return the names of their files; the driver appends these with the query's
id as application and the batch's number as version. Spark repeats a batch whose end it has not
noted, with the same rows: the table then has its version, and nothing is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore_spark.pipelines.parquet.files import FileFormat, PartitionedWriter, WrittenFile
from rmqstore_spark.pipelines.parquet.statistics import read_back
from rmqstore_spark.pipelines.tables.output import data_file, table_folder
from rmqstore_spark.pipelines.tables.table import LakeTable, append_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMN: Final = "file"


@dataclass(frozen=True)
class BatchTask:
    """Writes the rows of one partition; for `DataFrame.mapInArrow`.

    Args:
        fs: an fsspec file system.
        folder: path of the batch's folder.
        schema: the schema of the files.
        file_format: their format.
    """

    fs: Any
    folder: str
    schema: pa.Schema
    file_format: FileFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches, and yield the files as JSON."""
        prefix = f"part-{uuid.uuid4().hex[:16]}"
        with PartitionedWriter(
            self.fs, self.folder, prefix, self.schema, self.file_format
        ) as writer:
            for batch in batches:
                writer.write(batch)
        files = [read_back(self.fs, self.folder, file) for file in writer.finished]
        if files:
            texts = pa.array([json.dumps(asdict(file)) for file in files], pa.string())
            yield pa.RecordBatch.from_arrays([texts], [_COLUMN])


class TableSink:
    """Appends the batches of one query; for `foreachBatch`.

    Args:
        table: the table.
        options: options of fsspec for the table's folder.
        file_format: the format of the files.

    Attributes:
        query_id: the query's id; batches wait for it.
    """

    def __init__(
        self, table: LakeTable, options: Mapping[str, str], file_format: FileFormat
    ) -> None:
        self.query_id: Future[str] = Future()
        self._table = table
        self._format = file_format
        self._fs, self._root = table_folder(table, options)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, unless the table has it.

        Raises:
            RmqStoreError: the table could not be written.
        """
        application = self.query_id.result()
        self._table.refresh()
        last = self._table.version_of(application)
        if last is not None and last >= batch:
            print(f"batch {batch}: the table has it already", flush=True)
            return
        folder = f"data/{application}/{batch}-{uuid.uuid4().hex}"
        task = BatchTask(self._fs, f"{self._root}/{folder}", self._table.file_schema, self._format)
        written = rows.mapInArrow(task, f"{_COLUMN} string").collect()
        files = [WrittenFile(**json.loads(row[0])) for row in written]
        if files:
            append_once(
                self._table, [data_file(folder, file) for file in files], application, batch
            )
