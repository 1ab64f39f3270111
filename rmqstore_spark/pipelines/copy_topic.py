"""Copy one topic into a store, whole or in part, under its own name or another.

    python -m jobs.copy_topic STORE TOPIC ENDPOINT --as COPY

The copy is one batch write, so it appears as a whole or not at all. Messages keep their queues,
order, keys, tags, properties and bornTimestamp.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rmqstore_spark.datasource.options.option import STREAM
from rmqstore_spark.errors import OptionError
from rmqstore_spark.pipelines.arguments import add_source_options, new_parser, source_options
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.session import session
from rmqstore_spark.pipelines.targets import (
    add_target_options,
    create_topics,
    queues_read,
    target_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["copy_topic", "main", "parse_arguments"]


def parse_arguments(command: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser("copy_topic", "Copy one topic of RocketMQ stores into a store.")
    parser.add_argument("topic", metavar="TOPIC", help="the topic to copy")
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        help="endpoint of the store process to write to; several comma-separated",
    )
    parser.add_argument(
        "--as", dest="copy", metavar="TOPIC", help="topic of the copy (default: the same name)"
    )
    add_target_options(parser, streaming=False)
    add_source_options(parser, without=STREAM)
    return parser.parse_args(command)


def copy_topic(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Copy the topic, and print the number of messages."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    source = source_options(arguments)
    chosen = sorted({"subscribe", "subscribePattern", "assign"} & source.keys())
    if chosen:
        raise OptionError(
            f"Argument TOPIC already gives the topic: remove --{', --'.join(chosen)}."
        )
    source["subscribe"] = arguments.topic
    copy = arguments.copy or arguments.topic
    options = {"topic": copy, **target_options(arguments, streaming=False)}
    queues = queues_read(source, streaming=False).values()
    create_topics(options, {copy: max(queues)} if queues else {})
    count = Observation()
    (
        spark.read.format("rmqstore")
        .options(**source)
        .load()
        .observe(count, sf.count(sf.lit(1)).alias("rows"))
        .write.format("rmqstore")
        .options(**options)
        .mode("append")
        .save()
    )
    rows: int = count.get["rows"]
    print(f"{rows:,} message(s) of {arguments.topic} copied to {copy} at {arguments.endpoint}")


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = parse_arguments(command)
    return run_job(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> None:
    target_options(arguments, streaming=False)  # reports errors before Spark starts
    with session("rmqstore copy_topic") as spark:
        copy_topic(spark, arguments)


if __name__ == "__main__":
    sys.exit(main())
