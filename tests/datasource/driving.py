"""The data source driven as Spark drives it, in this process: what needs no JVM to be seen.

Offsets and partitions go through JSON and pickle as they do on their way to and from Spark.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.datasource.sources.store import StorePartition
from rmqstore_spark.datasource.spark_api import ReadAllAvailable, ReadLimit
from rmqstore_spark.datasource.stream.reader import RmqStoreStreamReader
from tests.support.stores.storebuilder import StoreBuilder, Traffic

__all__ = ["Clock", "GrowingStore", "Stream", "batch_rows", "plan_batch", "read_all", "rows_in"]

Row = dict[str, Any]


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of some batches; properties as dicts."""
    rows = []
    for batch in batches:
        for row in batch.to_pylist():
            if "properties" in row:
                row["properties"] = dict(row["properties"])
            rows.append(row)
    return rows


def source(path: str | Path, options: dict[str, Any]) -> RmqStoreDataSource:
    """The source as Spark makes it."""
    given = CaseInsensitiveDict()
    where = {"path": str(path)} if path else {}  # else there is an endpoint
    for name, value in {**where, **options}.items():
        given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    made = RmqStoreDataSource(given)
    sent: RmqStoreDataSource = pickle.loads(pickle.dumps(made))
    return sent


def plan_batch(
    path: str | Path, schema: StructType | None = None, **options: Any
) -> tuple[DataSourceReader, list[StorePartition]]:
    """A batch query's reader as tasks get it, and its partitions."""
    reader = source(path, options).reader(schema or full_schema())
    sent = pickle.loads(pickle.dumps(reader))
    return sent, [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]


def read_all(reader: Any, partitions: Iterable[InputPartition]) -> Iterator[pa.RecordBatch]:
    """What the tasks read."""
    for partition in partitions:
        yield from reader.read(partition)


def batch_rows(path: str | Path, schema: StructType | None = None, **options: Any) -> list[Row]:
    """All rows of a batch query."""
    return rows_in(read_all(*plan_batch(path, schema, **options)))


class Clock:
    """Time that passes only while the code sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Stream:
    """A streaming query over one checkpoint: each `Stream` on the same one is a restart.

    Args:
        path: the store.
        checkpoint: the offset log: ends of the batches; `committed` of them have been run.
    """

    def __init__(
        self,
        path: str | Path,
        checkpoint: list[str] | None = None,
        *,
        committed: int | None = None,
        schema: StructType | None = None,
        **options: Any,
    ) -> None:
        self.clock = Clock()
        made = source(path, options).streamReader(schema or full_schema())
        assert isinstance(made, RmqStoreStreamReader)
        self.task_side = pickle.loads(pickle.dumps(made))
        self.reader = made
        self.reader._clock, self.reader._sleep = self.clock, self.clock.sleep
        self.limit: ReadLimit = made.getDefaultReadLimit()
        self.log = [] if checkpoint is None else checkpoint
        self.committed = len(self.log) if committed is None else committed

    def prepare_available_now(self) -> None:
        self.reader.prepareForTriggerAvailableNow()

    def initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def latest(self, start: str, limit: ReadLimit | None = None) -> str:
        return json.dumps(self.reader.latestOffset(json.loads(start), limit or self.limit))

    def partitions(self, start: str, end: str) -> Sequence[InputPartition]:
        return self.reader.partitions(json.loads(start), json.loads(end))

    def read(self, partitions: Iterable[InputPartition]) -> list[Row]:
        sent = [pickle.loads(pickle.dumps(partition)) for partition in partitions]
        return rows_in(read_all(self.task_side, sent))

    def next_batch(self) -> list[Row] | None:
        """Run a micro-batch, as MicroBatchExecution does; None where nothing is new.

        One that is in the log and was not committed is run again first.
        """
        if self.committed == len(self.log):
            start = self.log[-1] if self.log else self.initial()
            end = self.latest(start)
            if self.log and end == start:
                return None
            self.log.append(end)
        start = self.log[self.committed - 1] if self.committed else self.initial()
        rows = self.read(self.partitions(start, self.log[self.committed]))
        self.committed += 1
        self.reader.commit(json.loads(self.log[self.committed - 1]))
        return rows

    def drain(self) -> list[list[Row]]:
        """Run micro-batches until nothing is new; after `prepare_available_now`, as that does."""
        batches: list[list[Row]] = []
        while (rows := self.next_batch()) is not None:
            batches.append(rows)
        return batches

    def plan_next(self) -> list[InputPartition]:
        """Log the next micro-batch, if anything is new, and do not run it."""
        start = self.log[-1] if self.log else self.initial()
        end = self.latest(start)
        if self.log and end == start:
            return []
        self.log.append(end)
        return list(self.partitions(start, end))


class GrowingStore:
    """A store that messages are put into, as a broker would.

    Args:
        path: the store.
        topics: name to number of queues; they take turns, or are drawn (`shuffled`).
        settings: of `StoreBuilder`.
    """

    def __init__(self, path: Path, topics: dict[str, int] | None = None, **settings: Any) -> None:
        self.path = path
        self.builder = StoreBuilder(path, **{"segment_size": 64 << 10, **settings})
        self._topics = topics or {"orders": 2}
        self._written = 0
        self.rows: list[tuple[str, int, int]] = []
        self.physical: dict[tuple[str, int, int], int] = {}

    def put(self, count: int, topics: dict[str, int] | None = None, **traffic: Any) -> None:
        """Store so many messages."""
        batches = Traffic(messages=count, topics=topics or self._topics, **traffic).batches()
        for batch in batches:
            stored = self.builder.append(batch)
            columns = ("topic", "queueId", "queueOffset")
            keys = list(zip(*(stored[name].to_pylist() for name in columns), strict=True))
            self.rows += keys
            self.physical.update(zip(keys, stored["physicalOffset"].to_pylist(), strict=True))
        self.builder.flush()


def keys_of(rows: Iterable[Row]) -> list[tuple[str, int, int]]:
    """What names a message, in the order of the rows."""
    return [(row["topic"], row["queueId"], row["queueOffset"]) for row in rows]


ALL = ReadAllAvailable()
Golden = Callable[[str], Path]
