"""Stream a topic of a production broker without touching the broker.

A store of this program follows the broker, as a slave does, and Spark reads the store. The stream
begins where a consumer group of the broker is, and records its own progress as the group `spark`.

spark-submit examples/follow_broker.py broker-1:10911 orders billing /data/copy
"""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore

LAG = 10.0
"""Seconds behind the broker at which the stream begins."""


def wait_until_close(endpoint: str) -> None:
    """Wait until the store has nearly all that the broker has; a busy one always has more."""
    with StoreClient(endpoint) as client:
        while True:
            stats = client.stats()
            print(f"{stats['commitLogMaxOffset']:,} bytes of the log are here")
            state = stats["replicationState"]
            if state == "STOPPED":
                raise SystemExit(f"The broker cannot be followed: {stats['replicationError']}")
            if state == "CONNECTING" and stats["replicationError"]:
                print(f"waiting for the broker: {stats['replicationError']}")
            lag = stats["replicationLagSeconds"]  # None until it is known
            is_close = lag is not None and lag < LAG
            if (is_close or stats["replicationComplete"]) and client.topics():
                return
            time.sleep(1)


def show(batch: DataFrame, batch_id: int) -> None:
    """Print one micro-batch: the messages of each queue."""
    print(f"--- micro-batch {batch_id}")
    batch.groupBy("queueId").agg(
        sf.count("*").alias("messages"),
        sf.min("queueOffset").alias("from"),
        sf.max("queueOffset").alias("to"),
    ).orderBy("queueId").show()


def main(
    broker: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The broker's listenPort.")],
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    group: Annotated[str, typer.Argument(help="The group to begin at.")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="Where the copy is kept.")],
    ha: Annotated[str, typer.Option(help="HOST:PORT for slaves; else listenPort + 1.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the store.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read the existing messages, and end.")
    ] = False,
) -> None:
    """Follow a broker, and stream a topic from the copy."""
    host, _, port = broker.rpartition(":")
    if not (host and port.isdecimal()):
        raise typer.BadParameter(f"{broker} is not HOST:PORT, such as broker-1:10911")
    role = {
        "brokerRole": "SLAVE",
        "haMasterAddress": ha or f"{host}:{int(port) + 1}",
        "haMasterRemotingAddress": broker,
    }
    given = dict(pair.split("=", 1) for pair in settings or ())
    with EmbeddedStore(store, settings={**role, **given}) as endpoint:
        wait_until_close(endpoint)
        spark = SparkSession.builder.appName("rmqstore follow").getOrCreate()
        messages = (
            spark.readStream.format("rmqstore")
            .option("subscribe", topic)
            .option("startingOffsets", f"group:{group}")
            .option("commitGroup", "spark")
            .option("endpoint", endpoint)
            .load()
        )
        # A real job sets a checkpointLocation, and continues there when it is started again.
        writer = messages.writeStream.foreachBatch(show)
        if available_now:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        with contextlib.suppress(KeyboardInterrupt):
            query.awaitTermination()
        query.stop()


if __name__ == "__main__":
    typer.run(main)
