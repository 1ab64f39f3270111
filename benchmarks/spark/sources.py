"""Data sources that the benchmarks hold against `rmqstore`, or measure it with."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.source import RmqStoreDataSource

__all__ = ["NullArrowSink", "ReadyMadeSource", "WatchedSource"]


class ReadyMadeSource(DataSource):
    """Gives the first batch of a store over and over: what is left is Spark's own work.

    Options are those of `rmqstore`, and `rows`: of each partition.
    """

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "readymade"

    def schema(self) -> StructType:
        """Give the schema of `rmqstore`."""
        return _source(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        return _ReadyMadeReader(_source(self.options).reader(schema), int(self.options["rows"]))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, rows: int) -> None:
        self._reader = reader
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = iter(self._reader.read(partition))
        first = next(batches)
        left = self._rows
        while left > 0:
            yield first.slice(0, left)
            left -= len(first)


class WatchedSource(DataSource):
    """`rmqstore`, whose tasks write down how much their process grew while they read.

    Options are those of `rmqstore`, and `notes`: a file to write to.
    """

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "watched"

    def schema(self) -> StructType:
        """Give the schema of `rmqstore`."""
        return _source(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        return _WatchedReader(_source(self.options).reader(schema), self.options["notes"])


class _WatchedReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, notes: str) -> None:
        self._reader = reader
        self._notes = notes

    def partitions(self) -> list[InputPartition]:
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        before = most = _resident()
        rows = 0
        for batch in self._reader.read(partition):
            rows += len(batch)
            yield batch
            most = max(most, _resident())
        with Path(self._notes).open("a", encoding="utf-8") as file:
            file.write(f"{rows} {most - before}\n")


class NullArrowSink(DataSource):
    """Takes rows as Arrow batches and does nothing with them: what is left is Spark's own work."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "nullarrow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's
        """Make the writer."""
        return _NullWriter()


class _NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _source(options: Mapping[str, str]) -> RmqStoreDataSource:
    """The source, with its own options only."""
    return RmqStoreDataSource({k: v for k, v in options.items() if k not in ("rows", "notes")})


def _resident() -> int:
    """Bytes of memory that this process has in use."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
