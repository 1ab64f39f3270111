"""Copy stores to Parquet as a stream: existing messages only, or new ones too.

    python -m jobs.stream_to_parquet STORE OUTPUT --checkpoint FOLDER
    spark-submit jobs/stream_to_parquet.py STORE OUTPUT --checkpoint FOLDER --trigger "30 seconds"

Files go to OUTPUT/topic=NAME/date=YYYY-MM-DD (of storeTimestamp, UTC). A run continues where the
previous one stopped, according to its checkpoint. Each message is written once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.pipelines.arguments import Job, Schema, StoreArguments, as_parser
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.following import follow
from rmqstore_spark.pipelines.parquet.columns import columns_to_read
from rmqstore_spark.pipelines.parquet.files import CODECS
from rmqstore_spark.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["JOB", "main", "start_query"]

AVAILABLE_NOW: Final = "available-now"


def _codec(text: str) -> str:
    if text not in CODECS:
        raise ValueError(f"must be one of {', '.join(CODECS)}, not {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class StreamArguments(StoreArguments):
    """The arguments of the job."""

    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="folder for the Parquet files")]
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="FOLDER", help="folder for the stream's progress"),
    ]
    trigger: Annotated[
        str,
        typer.Option(
            "--trigger",
            metavar="WHEN",
            help=f'{AVAILABLE_NOW}: copy the existing messages and end; "30 seconds": run '
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


JOB: Final = Job(
    "stream_to_parquet",
    StreamArguments,
    "Copy RocketMQ stores to Parquet as a stream.",
    without=BATCH,
)


def start_query(spark: SparkSession, arguments: StreamArguments) -> StreamingQuery:
    """Start the stream that the arguments describe."""
    from pyspark.sql import functions as sf

    schema, written = columns_to_read(arguments.schema, ("topic", "storeTimestamp"))
    # A copy begins with existing messages; by default a stream would begin with new ones.
    options = {"startingOffsets": "earliest", **arguments.source_options()}
    source = spark.readStream.format("rmqstore").schema(schema).options(**options)
    rows: DataFrame = source.load().select(
        *written, "topic", sf.to_date("storeTimestamp").alias("date")
    )
    writer = (
        rows.writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("compression", arguments.compression)
        .option("checkpointLocation", arguments.checkpoint)
        .queryName("stream_to_parquet")
    )
    if arguments.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=arguments.trigger)
    return writer.start(arguments.output)


def _copy(arguments: StreamArguments) -> None:
    with session("rmqstore stream_to_parquet") as spark:
        follow(start_query(spark, arguments))


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _copy(arguments))


if __name__ == "__main__":
    sys.exit(main())
