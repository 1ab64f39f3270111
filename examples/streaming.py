"""Follow a store: how many messages each topic gets in each interval, and how late they are seen.

spark-submit examples/streaming.py STORE                 until Ctrl-C
spark-submit examples/streaming.py STORE --available-now reads the existing messages, and ends
"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer
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


def main(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store directory or URL.")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read the existing messages, and end.")
    ] = False,
    seconds: Annotated[int, typer.Option(help="Length of an interval.")] = 1,
) -> None:
    """Count the messages of each topic by interval, as a stream."""
    spark = (
        SparkSession.builder.appName("rmqstore streaming")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    messages = (
        spark.readStream.format("rmqstore")
        # Only these columns are decoded; no bodies are read.
        .schema("topic string, queueId int, queueOffset bigint, storeTimestamp timestamp")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load(store)
    )
    # A real job sets a checkpointLocation, and continues there when it is started again.
    writer = counts_by_topic(messages, seconds).writeStream.outputMode("update")
    writer = writer.foreachBatch(show)
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="2 seconds")
    query = writer.start()
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination()
    query.stop()


if __name__ == "__main__":
    typer.run(main)
