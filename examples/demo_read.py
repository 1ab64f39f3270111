"""What `make demo-read` shows: a store that a RocketMQ broker wrote, read without a broker."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from showing import (
    ROOT,
    console,
    heading,
    show_code,
    show_command,
    show_next,
    show_rows,
    start_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ARCHIVE = ROOT / "examples" / "data" / "live-store.tar.gz"
STORE = "broker-a/store"
NEXT = (
    ("Your own store", 'spark.read.format("rmqstore").load("/path/to/store")'),
    ("The command", ".venv/bin/rmqstore --help"),
    ("Writing", "make demo"),
    ("Batch, stream, lag, plots", "examples/quickstart.ipynb"),
    ("A store to Parquet", ".venv/bin/python -m jobs.backfill STORE OUTPUT"),
    ("All options", "docs/options.md"),
)


def messages_by_topic(spark: SparkSession, store: str) -> DataFrame:
    """The batch query of the demo."""
    spark.read.format("rmqstore").load(store).createOrReplaceTempView("messages")
    return spark.sql("""
        SELECT topic, tags, count(*) AS messages, round(avg(length(body))) AS avg_body,
               max(timestampdiff(MILLISECOND, bornTimestamp, storeTimestamp)) AS max_delay_ms
        FROM messages GROUP BY topic, tags ORDER BY messages DESC, topic, tags""")


def copy_as_stream(spark: SparkSession, store: str, output: str, checkpoint: str) -> StreamingQuery:
    """The streaming query of the demo."""
    return (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load(store)
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(output)
    )


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-demo-") as folder:
        shutil.unpack_archive(ARCHIVE, Path(folder) / "broker-a")
        os.chdir(folder)  # so that paths are short to read
        try:
            show_command("Topics of the store, without Spark", "topics", STORE)
            spark = start_spark(folder)
            try:
                show_batch(spark)
                show_stream(spark)
            finally:
                spark.stop()
            show_command("Lag of consumer groups", "groups", STORE)
        finally:
            os.chdir(ROOT)
    show_next(NEXT)


def show_batch(spark: SparkSession) -> None:
    """Run the batch query."""
    heading("A batch query")
    show_code(messages_by_topic, "counts")
    rows = messages_by_topic(spark, STORE)
    with console.status("Running it ..."):
        found = rows.collect()
    show_rows(rows.columns, [list(row) for row in found])


def show_stream(spark: SparkSession) -> None:
    """Run the streaming query."""
    heading("A streaming query over the existing messages (Trigger.AvailableNow)")
    show_code(copy_as_stream, "query")
    with console.status("Running it ..."):
        query = copy_as_stream(spark, STORE, "copy", "checkpoint")
        query.awaitTermination()
    show_rows(
        ["micro-batch", "messages", "milliseconds"],
        [
            [progress.batchId, progress.numInputRows, progress.batchDuration]
            for progress in query.recentProgress
            if progress.numInputRows
        ],
    )
    copied = spark.read.parquet("copy").count()
    console.print(f"\nThe copy holds {copied:,} messages. Another run would continue from there.")


if __name__ == "__main__":
    main()
