"""A separate driver to kill: streams files into store processes, and stands still at given places.

    python -m tests.datasource.sink.driver FOLDER '{"before commit": "rmq://...", ...}'

It runs a query into each of the stores, side by side, over the files in FOLDER/arriving. Each makes
the file FOLDER/PLACE/reached where it stands still. The sink is the real one; around its methods
stands what makes tasks fail, and queries stand still.
"""

from __future__ import annotations

import json
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

AT_BATCH = 1
MOMENTS = ("after staging", "before commit", "after commit")
"""Where a query stands still, in micro-batch AT_BATCH."""
LOST = "the answer to a commit is lost"


def _stand_still(folder: Path) -> None:
    """Tell that the place is reached; the process that runs this goes with its JVM."""
    (folder / "reached").touch()
    signal.pause()


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
            _stand_still(self._folder)
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._die == "before commit" and batchId == AT_BATCH:
            _stand_still(self._folder)
        self._inner.commit(messages, batchId)
        if self._die == "after commit" and batchId == AT_BATCH:
            _stand_still(self._folder)
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
    """Run the queries until somebody kills this; those of tasks that fail come to their end."""
    folder, endpoints = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = (
        # Four attempts at each task, and a core more than there are tasks that stand still.
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.dataSource.register(FailingSource)
    files = spark.readStream.schema("body string, keys string").option("maxFilesPerTrigger", 1)
    arriving = files.parquet(str(folder / "arriving"))
    for die, endpoint in endpoints.items():
        own = folder / die
        own.mkdir()
        writer = arriving.writeStream.format("failing").trigger(availableNow=True)
        writer.option("checkpointLocation", str(own / "c"))
        writer.options(endpoint=endpoint, topic="orders", die=die, folder=str(own))
        query = writer.start()
        if die not in MOMENTS:
            query.awaitTermination()
            (own / "ended").touch()
    signal.pause()


if __name__ == "__main__":
    main()
