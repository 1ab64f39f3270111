"""Through a JVM: batches of the stores of a DLedger group, from their endpoints and folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmqstore_spark.client import StoreClient
from tests.engine.group.stores import StoreProcess, bodies_in, group_of
from tests.engine.group.test_old_log import copies, old_store
from tests.support.waiting import eventually, next_millisecond

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(
    spark: SparkSession,
    stores: Sequence[StoreProcess],
    wanted: Sequence[str],
    plans: Sequence[str] = ("queue", "commitlog"),
) -> None:
    for store in stores:
        for plan_by in plans:
            for key, place in (("endpoint", store.endpoint), ("path", str(store.store))):
                reader = spark.read.format("rmqstore").option(key, place).option("planBy", plan_by)
                frame = reader.option("maxBytesPerPartition", "1m").load()
                rows = frame.where("topic = 'orders'").select("body").collect()
                assert sorted(bytes(row.body).decode() for row in rows) == sorted(wanted)


def test_before_and_after_the_first_message(spark: SparkSession, tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        stores = group.leader(), group.followers()[0]
        check(spark, stores, [], ("auto", "commitlog"))  # there are no queues to plan by
        sent = group.send(*(f"message {n}" for n in range(20)))
        group.await_all()
        check(spark, stores, sent)


def test_with_older_segments_and_when_they_have_expired(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = old_store(tmp_path / "old")
    copies(tmp_path / "old")
    with group_of(tmp_path) as group:
        stores = group.leader(), group.followers()[0]
        check(spark, stores, old)
        sent = group.send(*(f"new {n} " + "y" * 100_000 for n in range(25)))
        group.await_all()
        check(spark, stores, [*old, *sent])
        next_millisecond()
        before = int(time.time() * 1000)
        group.send(*(f"newer {n} " + "y" * 100_000 for n in range(15)))
        group.await_all()
        for store in stores:
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(before, remove=True)
            eventually(lambda store=store: store.stats()["commitLogMinOffset"] == 4 << 20)
            check(spark, [store], bodies_in(store.store))
