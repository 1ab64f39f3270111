"""The second scene of `make demo`: a store and a follower, and a stream that survives either."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import rmqstore_spark
from rmqstore_spark.client import StoreClient
from showing import console, heading, show_code, show_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqstore_spark.embedding import EmbeddedStore

PART = 12_000
"""Messages that are written before the kill, and again after the restart."""

WARNINGS = ("Reading rmq://", "The replica rmq://")
"""What the source says on stderr when it continues at another replica, as it should here."""

PATIENCE = 300.0
"""Seconds, on a slow machine."""


def write_numbers(spark: SparkSession, endpoint: str, first: int) -> None:
    """Write some numbers, at the first store."""
    (
        spark.range(first, first + PART, 1, 2)
        .selectExpr("CAST(id AS STRING) AS body")
        .write.format("rmqstore")
        .option("endpoint", endpoint)
        .option("topic", "numbers")
        .mode("append")
        .save()
    )


def follow_numbers(spark: SparkSession, endpoints: str) -> StreamingQuery:
    """Start the query that reads. In `endpoints`, `|` separates the replicas."""
    return (
        spark.readStream.format("rmqstore")
        .schema("body STRING")
        .option("endpoint", endpoints)
        .option("replicaTimeout", "2s")
        .option("subscribe", "numbers")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4_000)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint-of-numbers")
        .start("numbers")
    )


def show_failover(spark: SparkSession) -> bool:
    """Run the scene; return whether the stream read each number once."""
    port = free_port()
    first = rmqstore_spark.embedded("first", haListenPort=port)
    second = rmqstore_spark.embedded(
        "second", brokerRole="SLAVE", haMasterAddress=f"127.0.0.1:{port}"
    )
    try:
        return run(spark, first, second, port)
    finally:
        second.stop()
        first.stop()


def run(spark: SparkSession, first: EmbeddedStore, second: EmbeddedStore, port: int) -> bool:
    """Show it step by step."""
    heading("Second scene: a store, and a follower that keeps a copy of it")
    with console.status("Starting both, writing ..."):
        first.start()
        write_numbers(spark, first.endpoint, 0)
        second.start()
        wait_until(lambda: is_whole(second), "the follower has everything")
    console.print(
        f"The first store serves {first.endpoint}. The second follows it at 127.0.0.1:{port},\n"
        f"as a slave broker would, and serves {second.endpoint}. Both hold {PART:,} numbers now."
    )
    heading("One stream reads from both: where one fails, it continues at the other")
    show_code(follow_numbers, "query")
    with console.status("Running it, and killing the first store ..."):
        query = follow_numbers(spark, f"{first.endpoint}|{second.endpoint}")
        wait_until(lambda: rows_of(query) > 0, "the first micro-batch is done", query)
        kill(first)
        wait_until(lambda: rows_of(query) >= PART, "the stream has read everything", query)
    console.print(
        f"The first store was killed while the stream read. It read on from the follower:\n"
        f"{PART:,} numbers."
    )
    with console.status("Starting the first store again, writing ..."):
        first.start()
        write_numbers(spark, first.endpoint, PART)
        wait_until(lambda: rows_of(query) >= 2 * PART, "the stream has read everything", query)
        query.stop()
    console.print(
        f"Then the first store came back, and {PART:,} more were written. The follower follows it\n"
        "again, and the stream, which never stopped, has read them too."
    )
    console.print()
    rows, distinct = totals(spark)
    show_rows(
        ["numbers", "rows", "distinct numbers", "lost", "doubled"],
        [["read from both", rows, distinct, 2 * PART - distinct, rows - distinct]],
    )
    return rows == distinct == 2 * PART


def totals(spark: SparkSession) -> tuple[int, int]:
    """Return the rows that the stream wrote, and how many different ones."""
    (row,) = (
        spark.read.parquet("numbers")
        .selectExpr("count(*) AS n", "count(DISTINCT body) AS d")
        .collect()
    )
    return row["n"], row["d"]


def rows_of(query: StreamingQuery) -> int:
    """Return how many rows a query has finished."""
    return sum(progress.numInputRows for progress in query.recentProgress)


def is_whole(follower: EmbeddedStore) -> bool:
    """Return whether a follower lacks nothing."""
    with StoreClient(follower.endpoint) as client:
        stats = client.stats()
        return bool(stats["replicationComplete"] and client.topics())


def kill(store: EmbeddedStore) -> None:
    """Kill a store process, as `kill -9` does."""
    if store.pid is not None:
        os.kill(store.pid, signal.SIGKILL)


def free_port() -> int:
    """Return a port on which nothing listens."""
    while True:
        # Below the ports of outgoing connections, one of which could take it meanwhile.
        port = random.SystemRandom().randrange(12_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_until(
    condition: Callable[[], bool], what: str, query: StreamingQuery | None = None
) -> None:
    """Wait for a condition; end the demo if it stays false."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if query is not None and not query.isActive:
            sys.exit(f"The stream ended: {query.exception()}")
        if time.monotonic() > deadline:
            sys.exit(f"It took more than {PATIENCE:.0f} s until {what}.")
        time.sleep(0.05)
