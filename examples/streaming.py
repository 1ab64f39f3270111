"""Follow a store: how many messages each topic gets in each interval, and how late they are seen.

spark-submit examples/streaming.py STORE                 until Ctrl-C
spark-submit examples/streaming.py STORE --available-now reads the existing messages, and ends
"""

from __future__ import annotations

import argparse
import contextlib

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf


def counts_by_topic(messages: DataFrame, seconds: int) -> DataFrame:
    """Count messages by topic and interval of their storeTimestamp."""
    return (
        messages.withWatermark("storeTimestamp", "1 minute")
        .groupBy(sf.window("storeTimestamp", f"{seconds} seconds").alias("interval"), "topic")
        .agg(sf.count("*").alias("messages"), sf.max("queueOffset").alias("highest_offset"))
    )


def show(batch: DataFrame, batch_id: int) -> None:
    """Print one micro-batch: the intervals that it changed."""
    print(f"--- micro-batch {batch_id}")
    batch.select(
        sf.date_format("interval.start", "HH:mm:ss").alias("from"),
        "topic",
        "messages",
        "highest_offset",
    ).orderBy("from", "topic").show(truncate=False)


def main() -> None:
    """Run the stream."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", metavar="STORE", help="store directory or URL")
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--seconds", type=int, default=1, help="length of an interval")
    arguments = parser.parse_args()

    spark = (
        SparkSession.builder.appName("rmqstore streaming")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    messages = (
        spark.readStream.format("rmqstore")
        # Only what is asked for is decoded: no bodies are read here.
        .schema("topic string, queueId int, queueOffset bigint, storeTimestamp timestamp")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load(arguments.store)
    )
    # A real job names a checkpointLocation, and goes on there when it is started again.
    writer = counts_by_topic(messages, arguments.seconds).writeStream.outputMode("update")
    writer = writer.foreachBatch(show)
    if arguments.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="2 seconds")
    query = writer.start()
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination()
    query.stop()


if __name__ == "__main__":
    main()
