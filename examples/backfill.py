"""A backfill that ends where a stream begins, so that nothing is missed and nothing comes twice.

    spark-submit examples/backfill.py STORE FOLDER

The offsets of this moment are the end of a batch query and the start of a stream. (`rmqstore
offsets STORE` prints the same JSON; `python -m jobs.backfill` writes large stores faster.)
"""

from __future__ import annotations

import argparse
import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from rmqstore_spark.reader import Store


def offsets_now(path: str) -> str:
    """Give the end of every queue as the JSON that startingOffsets and endingOffsets take."""
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


def main() -> None:
    """Copy what is there, then follow what comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", metavar="STORE", help="store directory or URL")
    parser.add_argument("folder", metavar="FOLDER", help="gets batch/, stream/ and checkpoint/")
    arguments = parser.parse_args()

    spark = (
        SparkSession.builder.appName("rmqstore backfill example")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    now = offsets_now(arguments.store)
    past = spark.read.format("rmqstore").option("endingOffsets", now).load(arguments.store)
    with_date(past).write.partitionBy("topic", "date").parquet(f"{arguments.folder}/batch")
    print("batch: ", spark.read.parquet(f"{arguments.folder}/batch").count(), "messages")

    to_come = spark.readStream.format("rmqstore").option("startingOffsets", now)
    query = (
        with_date(to_come.load(arguments.store))
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("checkpointLocation", f"{arguments.folder}/checkpoint")
        .trigger(availableNow=True)  # processingTime="10 seconds" to go on for good
        .start(f"{arguments.folder}/stream")
    )
    query.awaitTermination()
    print("stream:", sum(p.numInputRows for p in query.recentProgress), "messages since")


if __name__ == "__main__":
    main()
