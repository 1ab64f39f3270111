"""The data source API of the Spark that runs this, where its versions differ: 4.0 to 4.3.

The rest of the package is written for the newest one. What an older one lacks, or does otherwise,
is made up for here, and chosen by what its pyspark offers. Once a version is no longer supported,
its branches are deleted.

    arrow_schema        4.2 gave Spark's own mapping of types another parameter
    StreamArrowWriter   new in 4.1
    ReadLimit ...       new in 4.2, with all that tells a stream's reader where to start and end;
                        `stream_reader` adapts a reader to an older Spark
    KEEPS_TABLE_OPTIONS true since 4.3
    register            4.0 refuses a source that it has found by itself
"""

# ruff: noqa: N802 - the methods' names are Spark's

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)

from rmqstore_spark.base.workers import spark_version
from rmqstore_spark.datasource.failures import plain_errors
from rmqstore_spark.errors import RmqStoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "HAS_READ_LIMITS",
    "KEEPS_TABLE_OPTIONS",
    "OwnStartReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "register",
    "stream_reader",
]

_log = logging.getLogger("rmqstore_spark")

HAS_READ_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark tells a stream's reader where a micro-batch starts, and its limit; since 4.2."""

KEEPS_TABLE_OPTIONS: Final = spark_version() >= (4, 3)
"""Whether what a source adds to the schema of its table stays with that table.

It is the JVM that removes it from other schemas, so pyspark cannot be asked.
"""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for one of its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    code = to_arrow_schema.__code__
    if "timezone" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # before 4.2: always UTC, unless told otherwise


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A stream's writer that gets Arrow batches.

            4.0 has none, but asks of a stream's writer what it asks of any: if it is a
            `DataSourceArrowWriter`, its `write` gets batches, and rows otherwise.
            """


if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much of a stream to read at once."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """All of it."""

    @dataclass
    class ReadMinRows(ReadLimit):
        """At least so many rows."""

        min_rows: int

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow(ABC):  # noqa: B024 - as in Spark, but for its methods
        """A reader that can end at the present end."""


class LimitedReader(Protocol):
    """A reader of the newest API, as far as an older Spark needs it."""

    def initialOffset(self) -> dict[str, Any]: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


def stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Return a stream's reader in the form in which this Spark calls it."""
    return reader if HAS_READ_LIMITS else OwnStartReader(reader)


class OwnStartReader(DataSourceStreamReader):
    """A stream's reader for Spark before 4.2, which keeps the start of the next micro-batch.

    That Spark asks for the end of a micro-batch without naming its start or a limit. The start is
    the end of the last one that was planned. A restart names that too: before anything else, Spark
    asks for the partitions between the last end in the checkpoint and itself (its
    `AcceptsLatestSeenOffset`), whether that micro-batch was committed or has to be run again.
    Without a checkpoint, the start is the initial offset.

    Args:
        reader: the reader that is told both.
    """

    def __init__(self, reader: LimitedReader) -> None:
        self._reader = reader
        self._start: dict[str, Any] | None = None
        # The first answer and the last one, each with the start that it was found from.
        self._answers: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as 4.0 and 4.1 define it
        if self._start is None:
            self._start = self.initialOffset()
        limit = self._reader.getDefaultReadLimit()
        if not self._answers and not isinstance(limit, ReadAllAvailable):
            _log.warning(
                "This stream has a limit for each micro-batch, and this Spark (%s) cannot tell a "
                "source that the trigger is availableNow: with it, each run reads one micro-batch, "
                "as the limit allows. Run the query again until it reads no rows (this package's "
                "jobs do), or leave out the limit; Spark 4.2 and newer read all in one run.",
                ".".join(map(str, spark_version())),
            )
        end = self._reader.latestOffset(self._start, limit)
        self._answers[1:] = [(self._start, end)]
        return end

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        for asked_from, answer in self._answers:
            # `triggerAvailableNowWrapper` asks before the checkpoint is read, and keeps the answer.
            if end == answer and start not in (asked_from, end):
                raise RmqStoreError(
                    f"Spark plans a micro-batch from {str(start)[:200]}, and this source looked "
                    f"for its end from {str(asked_from)[:200]}: it would read messages twice. "
                    "Remove the last file of the folder `offsets` in the checkpoint, whose "
                    "micro-batch has not run, and start the query with the setting "
                    "spark.sql.streaming.triggerAvailableNowWrapper.enabled off."
                )
        planned = self._reader.partitions(start, end)
        self._start = end
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a format known to a session, unless Spark has found it by itself."""
    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
