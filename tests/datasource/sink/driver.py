"""A separate driver to kill: streams files into a store process, and dies at a given place.

    python driver.py '{"arriving": ..., "endpoint": ..., "checkpoint": ..., "die": "before commit"}'

Its sink is the real one; around its methods stands what makes tasks fail, and the driver die.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.datasource.spark_api import StreamArrowWriter
from tests.support.processes.jvm import QUICK_JVM

AT_BATCH = 1
LOST = "the answer to a commit is lost"


def _kill_driver(folder: Path) -> None:
    """Kill the driver, Python and JVM, as a machine that fails does; once."""
    victims = folder / "victims"
    if victims.exists():
        pids = [int(word) for word in victims.read_text().split()]
        victims.unlink()
        # Stopped first: when one of them is gone, the other must not notice and end by itself, nor
        # end this process before it has killed both.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        signal.pause()  # the process that runs this goes with them


class FailingWriter(StreamArrowWriter):
    """The writer of a stream, some of whose calls go wrong."""

    def __init__(self, inner: Any, die: str, folder: Path) -> None:
        self._inner = inner
        self._die = die
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self._die == "tasks" and context.attemptNumber() == 0:
            half = list(iterator)[:1]
            self._inner.write(iter(half))
            raise RuntimeError("a task fails when it has staged its rows")
        done: WriterCommitMessage = self._inner.write(iterator)
        if self._die == "tasks" and context.attemptNumber() == 1:
            raise RuntimeError("a task fails when it has staged all of its rows")
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        if self._die == "after staging" and batch == AT_BATCH:
            _kill_driver(self._folder)
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._die == "before commit" and batchId == AT_BATCH:
            _kill_driver(self._folder)
        self._inner.commit(messages, batchId)
        if self._die == "after commit" and batchId == AT_BATCH:
            _kill_driver(self._folder)
        if self._die == "commit fails":
            done = self._folder / f"failed-{batchId}"
            if not done.exists():
                done.touch()
                raise RuntimeError(LOST)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._inner.abort(messages, batchId)


class FailingSource(RmqStoreDataSource):
    """The sink, with a writer that fails; options `die` and `folder` are its own."""

    def __init__(self, options: Any) -> None:
        self._own = {name: options[name] for name in ("die", "folder")}
        super().__init__({k: v for k, v in options.items() if k.lower() not in self._own})

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        inner = super().streamWriter(schema, overwrite)
        return FailingWriter(inner, self._own["die"], Path(self._own["folder"]))


def main() -> None:
    """Run the query to its end, if it gets there."""
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    spark = (
        SparkSession.builder.master("local[2,4]")  # four attempts at each task
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.lang.ProcessHandle.current().pid()
    if given["die"]:
        (folder / "victims").write_text(f"{os.getpid()} {java}")
    spark.dataSource.register(FailingSource)
    reader = spark.readStream.schema("body string, keys string").option("maxFilesPerTrigger", 1)
    writer = (
        reader.parquet(given["arriving"])
        .writeStream.format("failing")
        .option("checkpointLocation", given["checkpoint"])
        .options(endpoint=given["endpoint"], topic="orders", die=given["die"], folder=str(folder))
        .trigger(availableNow=True)
    )
    writer.start().awaitTermination()
    sys.stdout.write("ended\n")
    spark.stop()


if __name__ == "__main__":
    main()
