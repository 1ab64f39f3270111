"""What `make demo` shows: a stream of orders into a store and out again, through a `kill -9`.

Its other scenes are in `demo_replicas` and `demo_broker`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import rmqstore_spark
from demo_broker import show_clients
from demo_replicas import WARNINGS, show_failover
from rmqstore_spark.client import StoreClient
from showing import (
    ROOT,
    console,
    heading,
    show_code,
    show_command,
    show_next,
    show_rows,
    silence,
    start_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqstore_spark.embedding import EmbeddedStore

FILES = 12
ORDERS = FILES * 10_000
KILLED_AFTER = 4
"""Micro-batches that are committed before the store process is killed."""

ORDER = "orderId BIGINT, customer STRING, country STRING, amount DECIMAL(9, 2)"
NOT_DISCARDED = "could not be discarded now: Nothing listens"
"""The sink's warning when its store process is gone, which the demo expects."""
NEXT = (
    (
        "Your own rows",
        'rows.write.format("rmqstore").options(endpoint=..., topic=...)',
    ),
    ("A store process", ".venv/bin/rmqstore serve --store /path/to/store"),
    ("Write and read, with plots", "examples/write_and_read.ipynb"),
    ("A broker's store", "make demo-read"),
    ("Guarantees", "docs/writing.md, docs/reliability.md"),
    ("Followers and failover", "docs/replication.md"),
    ("RocketMQ's clients", "docs/broker.md"),
    ("Run it in production", "docs/operate.md"),
)


def make_orders(spark: SparkSession) -> None:
    """Write orders with numbers from 0 to several files."""
    (
        spark.range(0, ORDERS, 1, FILES)
        .selectExpr(
            "id AS orderId",
            "concat('customer-', id * 7919 % 997) AS customer",
            "element_at(array('at', 'de', 'fr', 'it', 'pl'), int(id * 31 % 5 + 1)) AS country",
            "CAST((id * 104729 % 100000 + 1) / 100 AS DECIMAL(9, 2)) AS amount",
        )
        .write.parquet("orders")
    )


def write_stream(spark: SparkSession, endpoint: str) -> StreamingQuery:
    """Start the query that writes."""
    return (
        spark.readStream.schema(ORDER)
        .option("maxFilesPerTrigger", 1)
        .parquet("orders")
        .selectExpr(
            "to_json(struct(*)) AS body",
            "CAST(orderId AS STRING) AS keys",
            "country AS tags",
            "customer AS shardingKey",  # a customer's orders stay in one queue
        )
        .writeStream.format("rmqstore")
        .option("endpoint", endpoint)
        .option("topic", "orders")
        .option("retries", 1)  # so that the query fails soon
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def read_stream(spark: SparkSession, endpoint: str) -> StreamingQuery:
    """Start the query that reads through the process; `load(PATH)` reads the files directly."""
    return (
        spark.readStream.format("rmqstore")
        .schema("body STRING")
        .option("endpoint", endpoint)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
        .selectExpr(f"inline(array(from_json(body, '{ORDER}')))")
        .writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint-of-copy")
        .trigger(availableNow=True)
        .start("copy")
    )


def read_table(spark: SparkSession) -> DataFrame:
    """Read the same as a table, from the files."""
    return (
        spark.read.format("rmqstore")
        .schema("body STRING")
        .option("subscribe", "orders")
        .load("store")
        .selectExpr(f"inline(array(from_json(body, '{ORDER}')))")
    )


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-demo-") as folder:
        os.chdir(folder)  # so that paths are short to read
        store = rmqstore_spark.embedded("store")
        try:
            spark = start_spark(folder, [NOT_DISCARDED, *WARNINGS])
            try:
                exact = show_round_trip(spark, store)
                store.stop()
                exact = show_failover(spark) and exact
                exact = show_clients(spark) and exact
            finally:
                spark.stop()
                store.stop()
            show_command("Topics, without Spark", "topics", "store")
            show_command("Verify every record, entry and checksum of the store", "verify", "store")
        finally:
            store.stop()
            os.chdir(ROOT)
    if not exact:
        sys.exit("Messages were lost or duplicated.")
    show_next(NEXT)


def show_round_trip(spark: SparkSession, store: EmbeddedStore) -> bool:
    """Write, kill, continue, read; return whether exactly the orders that were made were read."""
    silence(spark)
    show_start(spark, store)
    show_kill(spark, store)
    show_restart(spark, store)
    show_reading(spark, store)
    return show_totals(spark)


def show_start(spark: SparkSession, store: EmbeddedStore) -> None:
    """Make the orders, and start the store process."""
    heading("A store process")
    with console.status("Making orders, starting the process ..."):
        make_orders(spark)
        store.start()
    show_lines('store = rmqstore_spark.embedded("store")', "endpoint = store.start()")
    console.print(
        f"It serves {store.endpoint}, as process {store.pid}. {ORDERS:,} orders are in {FILES} "
        "files."
    )


def show_kill(spark: SparkSession, store: EmbeddedStore) -> None:
    """Begin the stream, and kill the store process in the middle of a micro-batch."""
    heading("Write a stream of orders into the store")
    show_code(write_stream, "query")
    with console.status("Running it ..."):
        query = write_stream(spark, store.endpoint)
        staged = kill_while_staging(store, query)
        reason = reason_of_end(query)
        if reason is None:
            sys.exit("The stream did not notice that the store process was killed.")
    show_lines("os.kill(store.pid, signal.SIGKILL)")
    show_micro_batches(query)
    console.print(
        f"\nThen the store process was killed, with {staged:,} bytes of the next one staged. The "
        "query:"
    )
    console.print(reason, markup=False)


def kill_while_staging(store: EmbeddedStore, query: StreamingQuery) -> int:
    """Kill the process when tasks have sent part of a micro-batch that is not yet committed.

    Returns:
        How many bytes of it the process held.
    """
    between = False  # between two micro-batches: anything staged later is not committed
    with StoreClient(store.endpoint) as client:
        while query.isActive:
            figures = client.stats()
            staged = int(figures["stagedBytes"])
            between = between or (figures["commits"] >= KILLED_AFTER and not staged)
            if between and staged and store.pid is not None:
                os.kill(store.pid, signal.SIGKILL)
                return staged
    sys.exit(f"The stream ended before the kill: {query.exception()}")


def reason_of_end(query: StreamingQuery) -> str | None:
    """Wait until the query has ended, and return in one line why it failed; None if it did not."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        said = re.search(r"rmqstore_spark\.errors\.\w+: (.*)$", str(error), re.MULTILINE)
        return said[1] if said else str(error).partition("\n")[0]
    return None


def show_restart(spark: SparkSession, store: EmbeddedStore) -> None:
    """Start process and query again, on the same store and checkpoint."""
    heading("Restart: the store recovers, the query continues from its checkpoint")
    with console.status("Running it ..."):
        store.start()
        said = store.output.splitlines()
        query = write_stream(spark, store.endpoint)
        query.awaitTermination()
    show_lines("store.start()", "write_stream(spark, endpoint).awaitTermination()")
    for line in said:
        console.print(line, markup=False)
    console.print()
    show_micro_batches(query)


def show_reading(spark: SparkSession, store: EmbeddedStore) -> None:
    """Read the whole store, as a stream and as a table."""
    heading("Read it back as a stream (Trigger.AvailableNow)")
    show_code(read_stream, "query")
    with console.status("Running it ..."):
        query = read_stream(spark, store.endpoint)
        query.awaitTermination()
    show_micro_batches(query)
    heading("Read it back as a table")
    show_code(read_table, "orders")


def show_totals(spark: SparkSession) -> bool:
    """Count the orders made and the orders read; return whether they are the same."""
    heading("Totals")
    with console.status("Counting ..."):
        made = totals(spark.read.parquet("orders"))
        stream, table = totals(spark.read.parquet("copy")), totals(read_table(spark))
    show_rows(
        ["orders", "rows", "distinct numbers", "lost", "doubled", "sum of amounts"],
        [
            [
                name,
                found["rows"],
                found["numbers"],
                made["numbers"] - found["numbers"],
                found["rows"] - found["numbers"],
                found["amounts"],
            ]
            for name, found in (
                ("made", made),
                ("read as a stream", stream),
                ("read as a table", table),
            )
        ],
    )
    return made == stream == table


def totals(orders: DataFrame) -> dict[str, Any]:
    """Return the number of orders, of different order numbers, and the sum of their amounts."""
    (row,) = orders.selectExpr(
        "count(*) AS rows", "count(DISTINCT orderId) AS numbers", "sum(amount) AS amounts"
    ).collect()
    return row.asDict()


def show_micro_batches(query: StreamingQuery) -> None:
    """Show the micro-batches of a query."""
    show_rows(
        ["micro-batch", "messages", "milliseconds"],
        [
            [progress.batchId, progress.numInputRows, progress.batchDuration]
            for progress in query.recentProgress
            if progress.numInputRows
        ],
    )


def show_lines(*lines: str) -> None:
    """Show code that has run."""
    console.print("\n".join(lines), style="cyan", markup=False)
    console.print()


if __name__ == "__main__":
    main()
