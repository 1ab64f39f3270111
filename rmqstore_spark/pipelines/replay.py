"""Replay messages of stores, or of a backfill's Parquet, into stores.

    python -m jobs.replay STORE ENDPOINT --checkpoint FOLDER
    python -m jobs.replay FOLDER ENDPOINT --checkpoint FOLDER --parquet --map '*=r_*' --rate 5000

It replays the messages that exist when it starts, and ends. A run continues where the previous one
stopped, according to its checkpoint. Each message is written once, in the order of its queue.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.pipelines.arguments import add_source_options, new_parser, source_options
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.following import follow
from rmqstore_spark.pipelines.pacing import RATE_SECONDS, paced, rows_at_once
from rmqstore_spark.pipelines.replay_parquet import replay_parquet
from rmqstore_spark.pipelines.session import session
from rmqstore_spark.pipelines.targets import (
    TopicMap,
    add_target_options,
    create_topics,
    queues_read,
    target_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["main", "parse_arguments", "replay", "start_query"]


def parse_arguments(command: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser("replay", "Write messages of RocketMQ stores, or of Parquet, to stores.")
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        help="endpoint of the store process to write to; several comma-separated",
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="FOLDER", help="folder for the replay's progress"
    )
    parser.add_argument(
        "--parquet",
        action="store_true",
        help="STORE is a folder of Parquet files, as the jobs backfill and stream_to_parquet "
        "write them",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="write topic OLD as NEW; * stands for any text, as in '*=copy_*'; repeat it for "
        "several, the first match counts",
    )
    parser.add_argument(
        "--rate",
        type=_rate,
        metavar="N",
        help="at most N messages a second, 1 or more; one task then reads and writes all of "
        f"them, and commits {RATE_SECONDS} seconds' worth together",
    )
    add_target_options(parser, streaming=True)
    add_source_options(parser, without=BATCH)
    return parser.parse_args(command)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0
    if not 1 <= rate < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, not {text!r}")
    return rate


def start_query(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the replay of stores that the arguments describe."""
    options = target_options(arguments, streaming=True)
    topics = TopicMap.parse(arguments.map)
    source = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows_at_once(arguments.rate)),
        "maxBytesPerTrigger": "256m",  # bodies may be compressed: far below maxTransactionBytes
        **source_options(arguments),
    }
    create_topics(options, topics.queues(queues_read(source, streaming=True)))
    rows = spark.readStream.format("rmqstore").options(**source).load()
    if arguments.rate:
        rows = paced(rows, arguments.rate)
    return (
        topics.apply(rows)
        .writeStream.format("rmqstore")
        .options(**options)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .queryName("replay")
        .start()
    )


def replay(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Replay messages, and print how many this run wrote.

    Raises:
        KeyboardInterrupt: the run was interrupted; another run can continue it.
    """
    if arguments.parquet:
        rows, ended = replay_parquet(spark, arguments), True
    else:
        rows, ended = follow(start_query(spark, arguments))
    print(f"{rows:,} message(s) replayed to {arguments.endpoint}", flush=True)
    if not ended:
        raise KeyboardInterrupt


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = parse_arguments(command)
    return run_job(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> None:
    # Reports errors before Spark starts.
    target_options(arguments, streaming=True)
    TopicMap.parse(arguments.map)
    with session("rmqstore replay") as spark:
        replay(spark, arguments)


if __name__ == "__main__":
    sys.exit(main())
