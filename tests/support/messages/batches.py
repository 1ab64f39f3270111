"""Batches as Spark's tasks write them, staged and committed; and what of them a store shows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo, WriterId
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.messages.blocks import encoded

__all__ = [
    "BATCH", "PARTITIONS", "QUERY", "ROWS", "bodies", "commit_batch", "expected", "rows_block",
    "scanned", "shown", "small_segments", "stage_batch", "stage_id",
]  # fmt: skip

QUERY = "11111111-2222-3333-4444-555555555555"
PARTITIONS, ROWS = 3, 40
BATCH = PARTITIONS * ROWS

_PLACE = ReadOptions(columns=("topic", "queueId", "queueOffset", "physicalOffset", "body"))


def small_segments(**others: str) -> StoreConfig:
    """A store whose batches span several segments."""
    given = {
        "mappedFileSizeCommitLog": "8192", "mappedFileSizeConsumeQueue": "600",
        "maxHashSlotNum": "500", "maxIndexNum": "2000", "diskMaxUsedSpaceRatio": "99",
    }  # fmt: skip
    return StoreConfig().with_overrides({**given, **others})


def bodies(name: str, rows: int = ROWS) -> list[bytes]:
    """Bodies that nobody else writes, of different lengths."""
    return [f"{name}/{n}:{'x' * (n * 37 % 300)}".encode() for n in range(rows)]


def rows_block(wanted: Sequence[bytes], topics: Sequence[str] = ("orders", "bills")) -> U1:
    """Encode messages with these bodies, spread over topics and queues."""
    n = len(wanted)
    numbers = np.arange(n)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topics[k % len(topics)] for k in range(n)]),
            "queueId": pa.array(numbers // len(topics) % 2, pa.int32()),
            "body": pa.array(wanted, pa.binary()),
            "properties": pa.array([b"UNIQ_KEY\x01" + b[:20] for b in wanted], pa.binary()),
            "bornTimestamp": pa.array(numbers),
        }
    )
    return encoded(batch)


def stage_id(name: str) -> str:
    """A stage id that is always the same for a name."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def stage_batch(
    store: StoreWriter, batch: str, partitions: int = PARTITIONS, rows: int = ROWS, attempt: int = 0
) -> tuple[StageInfo, ...]:
    """Stage a batch as its tasks do; each sends its rows in two blocks."""
    infos = []
    for partition in range(partitions):
        stage = store.batches.begin_stage(
            stage_id(f"{batch}/{partition}/{attempt}"), f"task {partition}"
        )
        wanted = bodies(f"{batch}/{partition}", rows)
        for part in (wanted[: rows // 2], wanted[rows // 2 :]):
            stage.append(rows_block(part))
        infos.append(stage.finish())
    return tuple(infos)


def commit_batch(store: StoreWriter, number: int, attempt: int = 0) -> CommitResult:
    """Stage and commit one micro-batch of the query."""
    stages = stage_batch(store, f"b{number}", attempt=attempt)
    return store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, number), stages))


def expected(*numbers: int) -> list[bytes]:
    """The rows of micro-batches, in the order of the log."""
    return [b for n in numbers for p in range(PARTITIONS) for b in bodies(f"b{n}/{p}")]


def _users(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row["body"] for row in rows if row["topic"] != MARKER_TOPIC]


def scanned(path: Path) -> list[bytes]:
    """The users' rows in the order of the log, and that the marker stands only behind them."""
    with Store.open(path) as store:
        return _users(store.scan(options=_PLACE))


def shown(path: Path) -> Counter[bytes]:
    """The users' rows as the queues show them."""
    with Store.open(path) as store:
        return Counter(
            body
            for queue in store.queues()
            for body in _users(store.read(queue.topic, queue.queue_id, options=_PLACE))
        )
