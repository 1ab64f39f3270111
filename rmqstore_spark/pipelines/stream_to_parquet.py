"""Copy stores to Parquet, or to a table, as a stream: existing messages only, or new ones too.

    python -m jobs.stream_to_parquet STORE OUTPUT --checkpoint FOLDER
    spark-submit jobs/stream_to_parquet.py STORE OUTPUT --checkpoint FOLDER --trigger "30 seconds"

Files go to OUTPUT/topic=NAME/date=YYYY-MM-DD (of storeTimestamp, UTC). A run continues where the
previous one stopped, according to its checkpoint. Each message is written once. With --to delta or
--to iceberg, each micro-batch is a commit to a table that is partitioned in the same way.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.datasource.options.values import parse_duration_ms
from rmqstore_spark.datasource.schema import project
from rmqstore_spark.pipelines.arguments import Job, Schema, as_parser, columns_to_read
from rmqstore_spark.pipelines.parquet.files import CODECS, FileFormat
from rmqstore_spark.pipelines.running import follow, follow_to_the_end, run_job, session
from rmqstore_spark.pipelines.tables.arguments import (
    PARQUET,
    TableArguments,
    create_table,
    find_table,
)
from rmqstore_spark.pipelines.tables.output import TableSink
from rmqstore_spark.pipelines.tables.table import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AVAILABLE_NOW: Final = "available-now"
_INTERVAL: Final = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")


def _codec(text: str) -> str:
    if text not in CODECS:
        raise ValueError(f"must be one of {', '.join(CODECS)}, not {text!r}")
    return text


def _trigger(text: str) -> str:
    """Return when a stream runs, as Spark takes it."""
    if text == AVAILABLE_NOW or _INTERVAL.fullmatch(text):
        return text
    try:
        return f"{parse_duration_ms(text)} milliseconds"
    except ValueError:
        raise ValueError(
            f"must be {AVAILABLE_NOW}, or an interval such as 30s or '30 seconds', not {text!r}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class StreamArguments(TableArguments):
    """The arguments of the job."""

    output: Annotated[
        str,
        typer.Argument(metavar="OUTPUT", help="folder for the Parquet files; or a table, see --to"),
    ]
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="FOLDER", help="folder for the stream's progress")
    ]
    trigger: Annotated[
        str,
        typer.Option(
            "--trigger",
            metavar="WHEN",
            parser=as_parser(_trigger),
            help=f"{AVAILABLE_NOW}: copy the existing messages and end; 30s, or '30 seconds': run "
            "continuously, at this interval",
        ),
    ] = AVAILABLE_NOW
    schema: Schema = None
    compression: Annotated[
        str,
        typer.Option(
            "--compression", metavar="CODEC", parser=as_parser(_codec), help=", ".join(CODECS)
        ),
    ] = "zstd"

    def places(self) -> tuple[str, ...]:
        """Return the folders that the job writes to."""
        return (*super().places(), self.checkpoint)


JOB: Final = Job(
    "stream_to_parquet",
    StreamArguments,
    "Copy RocketMQ stores to Parquet, or to a Delta or Iceberg table, as a stream.",
    without=BATCH,
)


def start_query(spark: SparkSession, arguments: StreamArguments) -> StreamingQuery:
    """Start the stream that the arguments describe.

    Raises:
        RmqStoreError: an argument is wrong, or the table cannot be written.
    """
    arguments.check_table()
    schema, written = columns_to_read(arguments.schema, ("topic", "storeTimestamp"))
    # A copy begins with existing messages; by default a stream would begin with new ones.
    options = {"startingOffsets": "earliest", **arguments.source_options()}
    rows = spark.readStream.format("rmqstore").schema(schema).options(**options).load()
    if arguments.to == PARQUET:
        return _triggered(_to_parquet(rows, written, arguments), arguments).start(arguments.output)
    columns = table_schema(written, body_as_text=project(schema).body_as_text)
    sink = TableSink(
        find_table(arguments, columns) or create_table(arguments, columns),
        arguments.file_options(),
        FileFormat(arguments.compression),
    )
    try:
        query = _triggered(rows.writeStream.foreachBatch(sink), arguments).start()
    except BaseException as error:
        sink.query_id.set_exception(error)  # a batch may be waiting
        raise
    sink.query_id.set_result(query.id)
    return query


def _to_parquet(
    rows: DataFrame, written: tuple[str, ...], arguments: StreamArguments
) -> DataStreamWriter:
    from pyspark.sql import functions as sf

    chosen = rows.select(*written, "topic", sf.to_date("storeTimestamp").alias("date"))
    writer = chosen.writeStream.format("parquet").partitionBy("topic", "date")
    return writer.option("compression", arguments.compression)


def _triggered(writer: DataStreamWriter, arguments: StreamArguments) -> DataStreamWriter:
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    writer = writer.queryName("stream_to_parquet")
    if arguments.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=arguments.trigger)


def _copy(arguments: StreamArguments) -> None:
    arguments.check_table()
    arguments.check_source(streaming=True)
    with session("rmqstore stream_to_parquet") as spark:
        if arguments.trigger == AVAILABLE_NOW:
            follow_to_the_end(lambda: start_query(spark, arguments))
        else:
            follow(start_query(spark, arguments))


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _copy(arguments), arguments.places())


if __name__ == "__main__":
    sys.exit(main())
