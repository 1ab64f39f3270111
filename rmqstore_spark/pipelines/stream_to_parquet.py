"""Copy stores to Parquet as a stream: existing messages only, or new ones too.

    python -m jobs.stream_to_parquet STORE OUTPUT --checkpoint FOLDER
    spark-submit jobs/stream_to_parquet.py STORE OUTPUT --checkpoint FOLDER --trigger "30 seconds"

Files go to OUTPUT/topic=NAME/date=YYYY-MM-DD (of storeTimestamp, UTC). A run continues where the
previous one stopped, according to its checkpoint. Each message is written once.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.pipelines.arguments import add_source_options, new_parser, source_options
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.following import follow
from rmqstore_spark.pipelines.parquet.columns import SCHEMA_HELP, columns_to_read
from rmqstore_spark.pipelines.parquet.files import CODECS
from rmqstore_spark.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["main", "parse_arguments", "start_query"]

AVAILABLE_NOW = "available-now"


def parse_arguments(command: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser("stream_to_parquet", "Copy RocketMQ stores to Parquet as a stream.")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the Parquet files")
    parser.add_argument(
        "--checkpoint", required=True, metavar="FOLDER", help="folder for the stream's progress"
    )
    parser.add_argument(
        "--trigger",
        default=AVAILABLE_NOW,
        metavar="WHEN",
        help=f'{AVAILABLE_NOW}: copy the existing messages and end; "30 seconds": run '
        "continuously, at this interval (default: %(default)s)",
    )
    parser.add_argument("--schema", metavar="DDL", help=SCHEMA_HELP)
    parser.add_argument("--compression", choices=CODECS, default="zstd", help="(default: zstd)")
    add_source_options(parser, without=BATCH)
    return parser.parse_args(command)


def start_query(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the stream that the arguments describe."""
    from pyspark.sql import functions as sf

    schema, written = columns_to_read(arguments.schema, ("topic", "storeTimestamp"))
    # A copy begins with existing messages; by default a stream would begin with new ones.
    options = {"startingOffsets": "earliest", **source_options(arguments)}
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


def _copy(arguments: argparse.Namespace) -> None:
    with session("rmqstore stream_to_parquet") as spark:
        follow(start_query(spark, arguments))


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = parse_arguments(command)
    return run_job(lambda: _copy(arguments))


if __name__ == "__main__":
    sys.exit(main())
