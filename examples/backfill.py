"""A backfill that ends where a stream begins, so that no message is missed or duplicated.

    spark-submit examples/backfill.py STORE FOLDER

The current end offsets are the end of a batch query and the start of a stream. (`rmqstore
offsets STORE` prints the same JSON; `python -m jobs.backfill` writes large stores faster.)
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from rmqstore_spark.reader import Store


def offsets_now(path: str) -> str:
    """Return the end of every queue as JSON for startingOffsets and endingOffsets."""
    offsets: dict[str, dict[str, int]] = {}
    with Store.open(path) as store:
        for topic in store.topics():
            if topic.queue_ids and not topic.is_system:
                offsets[topic.name] = {
                    str(queue.queue_id): queue.max_offset for queue in store.queues([topic.name])
                }
    return json.dumps(offsets)


def with_date(messages: DataFrame) -> DataFrame:
    """Add the day on which a message was stored, to partition by."""
    return messages.withColumn("date", sf.to_date("storeTimestamp"))


def main(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store directory or URL.")],
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Receives batch/, stream/ and checkpoint/.")
    ],
) -> None:
    """Copy the existing messages as a batch, and later ones as a stream."""
    spark = (
        SparkSession.builder.appName("rmqstore backfill example")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    now = offsets_now(store)
    past = spark.read.format("rmqstore").option("endingOffsets", now).load(store)
    with_date(past).write.partitionBy("topic", "date").parquet(f"{folder}/batch")
    print("batch: ", spark.read.parquet(f"{folder}/batch").count(), "messages")

    to_come = spark.readStream.format("rmqstore").option("startingOffsets", now)
    query = (
        with_date(to_come.load(store))
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # processingTime="10 seconds" to run continuously
        .start(f"{folder}/stream")
    )
    query.awaitTermination()
    print("stream:", sum(p.numInputRows for p in query.recentProgress), "messages since")


if __name__ == "__main__":
    typer.run(main)
