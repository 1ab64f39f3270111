"""A driver of its own whose tasks are tried more than once by Spark itself.

    python -m tests.datasource.sink.attempts_driver '{"master": ..., "endpoint": ..., ...}'

It writes tables with the sink, and compares what reading them gives with what they were. The first
attempt at a partition that has staged its rows fails then, whichever Spark has started first; or
that at partition 0 hangs, until Spark, which speculates, kills it.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from chispa import assert_df_equality
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users have it
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.source import RmqStoreDataSource

ROWS, PARTITIONS = 6_000, 4
WRITES = (
    ("failing", "fail", "true"),
    ("hanging", "hang", "true"),
    ("alone", "hang", "false"),  # each task commits for itself
)
"""Topic, what the first attempts to stage all rows do, and option atomic."""


class SlowWriter(DataSourceArrowWriter):
    """The sink's writer, with first attempts that fail or hang when all is staged."""

    def __init__(self, inner: Any, go: str, folder: Path) -> None:
        self._inner = inner
        self._go = go
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done: WriterCommitMessage = self._inner.write(iterator)
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        (self._folder / f"{partition}-staged-{context.attemptNumber()}").touch()
        first = self._folder / f"{partition}-first"
        if self._go == "fail" and is_made(first):
            raise RuntimeError("a task fails when it has staged all of its rows")
        if self._go == "hang" and partition == 0 and is_made(first):
            signal.pause()
        while self._go == "hang" and not (self._folder / "0-first").exists():
            time.sleep(0.05)  # else Spark has nobody to overtake
        return done

    def commit(self, messages: Any) -> None:
        self._inner.commit(messages)

    def abort(self, messages: Any) -> None:
        self._inner.abort(messages)


def is_made(path: Path) -> bool:
    """Make a file; return whether no other attempt has made it."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class SlowSource(RmqStoreDataSource):
    """The sink with such a writer; options `go` and `folder` are its own."""

    def __init__(self, options: Any) -> None:
        self._own = {name: options[name] for name in ("go", "folder")}
        super().__init__({k: v for k, v in options.items() if k.lower() not in self._own})

    @classmethod
    def name(cls) -> str:
        return "slow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        inner = super().writer(schema, overwrite)
        return SlowWriter(inner, self._own["go"], Path(self._own["folder"]))


def main() -> None:
    """Write tables, with what goes wrong, and read them."""
    given = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master(given["master"])
        .config(map=given["settings"])
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(Path(given["folder"], "warehouse")))
        .getOrCreate()
    )
    spark.dataSource.register(SlowSource)
    spark.dataSource.register(RmqStoreDataSource)
    rows = spark.range(ROWS, numPartitions=PARTITIONS).select(
        F.concat(F.lit("row-"), F.col("id")).cast("binary").alias("body")
    )
    for topic, go, atomic in WRITES:
        folder = Path(given["folder"], topic)
        folder.mkdir()
        options = {"go": go, "folder": str(folder), "topic": topic, "atomic": atomic}
        write = rows.write.format("slow").mode("append").options(endpoint=given["endpoint"])
        write.options(**options).save()
        # Through the process: it answers when the queues hold what the log does.
        read = spark.read.format("rmqstore").options(endpoint=given["endpoint"], subscribe=topic)
        assert_df_equality(
            read.load().select("body").orderBy("body"), rows.orderBy("body"), ignore_nullable=True
        )
    sys.stdout.write("ended\n")
    spark.stop()


if __name__ == "__main__":
    main()
