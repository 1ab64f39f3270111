"""Replay messages of stores, or of a backfill's Parquet, into stores.

    python -m jobs.replay STORE ENDPOINT --checkpoint FOLDER
    python -m jobs.replay FOLDER ENDPOINT --checkpoint FOLDER --parquet --map '*=r_*' --rate 5000

It replays the messages that exist when it starts, and ends. A run continues where the previous one
stopped, according to its checkpoint. Each message is written once, in the order of its queue.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.pipelines.arguments import Job
from rmqstore_spark.pipelines.failures import run_job
from rmqstore_spark.pipelines.following import follow_to_the_end
from rmqstore_spark.pipelines.pacing import paced, rows_at_once
from rmqstore_spark.pipelines.replay_arguments import ReplayArguments
from rmqstore_spark.pipelines.replay_parquet import replay_parquet
from rmqstore_spark.pipelines.session import session
from rmqstore_spark.pipelines.target_topics import create_topics
from rmqstore_spark.pipelines.targets import TopicMap, queues_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JOB: Final = Job(
    "replay",
    ReplayArguments,
    "Write messages of RocketMQ stores, or of Parquet, to stores.",
    without=BATCH,
)


def start_query(spark: SparkSession, arguments: ReplayArguments) -> StreamingQuery:
    """Start the replay of stores that the arguments describe."""
    options = arguments.target_options()
    topics = TopicMap.parse(arguments.map)
    source = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows_at_once(arguments.rate)),
        "maxBytesPerTrigger": "256m",  # bodies may be compressed: far below maxTransactionBytes
        **arguments.source_options(),
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


def replay(spark: SparkSession, arguments: ReplayArguments) -> None:
    """Replay messages, and print how many this run wrote.

    Raises:
        KeyboardInterrupt: the run was interrupted; another run can continue it.
    """
    if arguments.parquet:
        rows, ended = replay_parquet(spark, arguments), True
    else:
        done = follow_to_the_end(lambda: start_query(spark, arguments))
        rows, ended = done.rows, done.ended
    print(f"{rows:,} message(s) replayed to {arguments.endpoint}", flush=True)
    if not ended:
        raise KeyboardInterrupt


def main(command: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = JOB.parse(command)
    return run_job(lambda: _run(arguments))


def _run(arguments: ReplayArguments) -> None:
    # Reports errors before Spark starts.
    arguments.target_options()
    TopicMap.parse(arguments.map)
    with session("rmqstore replay") as spark:
        replay(spark, arguments)


if __name__ == "__main__":
    sys.exit(main())
