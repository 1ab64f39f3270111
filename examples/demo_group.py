"""What `make demo-group` shows: three stores that elect a leader, and a stream that outlives it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

import rmqstore_spark
from demo import reason_of_end
from demo_replicas import free_port, wait_until
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError
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
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqstore_spark.embedding import EmbeddedStore

FILES = 12
KILLED_AFTER = 2
"""Micro-batches that the leader has committed before it is killed."""
NUMBERS = FILES * 10_000
WARNINGS = ("No replica of a store", "Asking the new master", "could not be discarded now")
"""What the sink says on stderr when its leader has gone, as it should here."""
NO_FAILURE = "It did not fail: all was committed, or the others elected a leader soon enough."
"""On a slow machine much can happen between a look at the leader and the kill."""
NEXT = (
    ("Groups, also with brokers of RocketMQ", "docs/dledger.md"),
    ("How elections are tested", "docs/reliability.md"),
    ("Run it in production", "docs/operate.md"),
)


def write_stream(spark: SparkSession, members: str) -> StreamingQuery:
    """Start the query that writes. In `members`, `|` separates the members of the group."""
    return (
        spark.readStream.schema("id BIGINT")
        .option("maxFilesPerTrigger", 1)
        .parquet("numbers")
        .selectExpr("CAST(id AS STRING) AS body")
        .writeStream.format("rmqstore")
        .option("endpoint", members)
        .option("topic", "numbers")
        .option("retries", 1)  # so that the query fails soon
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def make_group(folder: str) -> dict[str, EmbeddedStore]:
    """Return three stores, not started, each of which is a member of one group."""
    ports = {f"n{number}": free_port() for number in range(3)}
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in ports.items())
    return {
        name: rmqstore_spark.embedded(
            f"{folder}/{name}",
            port=free_port(),
            enableDLegerCommitLog=True,
            dLegerGroup="numbers",
            dLegerPeers=peers,
            dLegerSelfId=name,
            dLegerHeartbeatInterval=500,
        )
        for name in ports
    }


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-demo-") as folder:
        os.chdir(folder)  # so that paths are short to read
        members = make_group(folder)
        try:
            spark = start_spark(folder, WARNINGS)
            silence(spark)
            try:
                is_exact = run(spark, members)
            finally:
                spark.stop()
        finally:
            for member in members.values():
                member.stop()
            os.chdir(ROOT)
    if not is_exact:
        sys.exit("Messages were lost or duplicated.")
    show_next(NEXT)


def run(spark: SparkSession, members: dict[str, EmbeddedStore]) -> bool:
    """Show it step by step; return whether each member has each number once."""
    heading("Three stores in a DLedger group")
    with console.status("Starting them ..."):
        spark.range(0, NUMBERS, 1, FILES).write.parquet("numbers")
        for member in members.values():
            member.start()
        wait_until(lambda: all(map(may_vote, members.values())), "all members may vote")
        wait_until(lambda: leader_of(members) is not None, "there is a leader")
    console.print(
        f"{leader_of(members)} leads: it takes messages, and acknowledges them when two of three "
        "have them on disk."
    )
    heading("A stream writes to whichever leads")
    endpoints = "|".join(member.endpoint for member in members.values())
    show_code(write_stream, "query")
    with console.status("Running it, and killing the leader ..."):
        killed, reason = kill_leader(spark, members, endpoints)
    console.print(f"{killed} was killed with a part of a micro-batch staged. The query:")
    console.print(reason, markup=False)
    heading("The others elect a leader, and the query finishes")
    with console.status("Running it ..."):
        finish(spark, endpoints)
        second = leader_of(members)
        members[killed].start()
        wait_until(lambda: all(has_all(member) for member in members.values()), "all have it")
    console.print(f"{second} leads now, and {killed} has come back and got what it lacked.")
    console.print()
    found = {name: totals(spark, member.endpoint) for name, member in members.items()}
    show_rows(
        ["numbers", "rows", "distinct numbers", "lost", "doubled"],
        [
            [f"read from {name}", rows, distinct, NUMBERS - distinct, rows - distinct]
            for name, (rows, distinct) in found.items()
        ],
    )
    show_command("What a member says", "stats", members["n0"].endpoint)
    return all(rows == distinct == NUMBERS for rows, distinct in found.values())


def kill_leader(
    spark: SparkSession, members: dict[str, EmbeddedStore], endpoints: str
) -> tuple[str, str]:
    """Start the stream, and kill the leader in the middle of a micro-batch.

    Returns:
        The name of the member that was killed, and why the query failed.
    """
    while True:
        query = write_stream(spark, endpoints)
        while query.isActive:
            name = leader_of(members)
            if name is not None and is_staging(members[name]):
                os.kill(members[name].pid or 0, signal.SIGKILL)
                return name, reason_of_end(query) or NO_FAILURE
        if query.exception() is None:
            sys.exit("The stream ended before the kill.")
        # On a slow machine the members can elect another leader by themselves.


def is_staging(member: EmbeddedStore) -> bool:
    """Return whether a store has some micro-batches, and a part of the next one."""
    try:
        with StoreClient(member.endpoint, retries=0) as client:
            figures = client.stats()
    except RmqStoreError:
        return False
    return bool(figures["commits"] >= KILLED_AFTER and figures["stagedBytes"])


def finish(spark: SparkSession, endpoints: str) -> None:
    """Run the stream to its end, from its checkpoint, through further elections."""
    from pyspark.errors import StreamingQueryException

    while True:
        with suppress(StreamingQueryException):
            write_stream(spark, endpoints).awaitTermination()
            return


def leader_of(members: dict[str, EmbeddedStore]) -> str | None:
    """Return the name of the member that leads, as it says itself."""
    for name, member in members.items():
        if member.pid is None:
            continue
        try:
            with StoreClient(member.endpoint, retries=0, timeout_s=2) as client:
                if client.open(()).is_master:
                    return name
        except RmqStoreError:
            continue
    return None


def may_vote(member: EmbeddedStore) -> bool:
    """Return whether a member has heard enough of the others to vote."""
    with StoreClient(member.endpoint) as client:
        return bool(client.stats()["groupIsVoter"])


def has_all(member: EmbeddedStore) -> bool:
    """Return whether a member's queues have all numbers."""
    with StoreClient(member.endpoint) as client:
        queues = client.offsets(["numbers"]).queues.get("numbers", {})
        return sum(queue.max_offset for queue in queues.values()) >= NUMBERS


def totals(spark: SparkSession, endpoint: str) -> tuple[int, int]:
    """Return the rows that a member has, and how many different ones."""
    (row,) = (
        spark.read.format("rmqstore")
        .option("endpoint", endpoint)
        .option("subscribe", "numbers")
        .load()
        .selectExpr("count(*) AS n", "count(DISTINCT body) AS d")
        .collect()
    )
    return row["n"], row["d"]


if __name__ == "__main__":
    main()
