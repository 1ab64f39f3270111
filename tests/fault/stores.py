"""Small stores that damage is done to: as a clean close leaves them, and as a kill does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.fault.messages import TOPICS, block
from tests.support.stores.storing import as_killed, until

TINY: Final = {
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 50,
    "maxIndexNum": 100,
    "diskMaxUsedSpaceRatio": 100,
    "stagingMemoryBytes": 0,
}
"""Files so small that a hundred messages fill several of each kind, those of stages included."""

_COLUMNS: Final = ("topic", "queueId", "queueOffset", "physicalOffset", "body")
"""Of what nothing in a store can change unnoticed."""

NOW: Final = 1_800_000_000_000
"""What a clock may say afterwards."""

Row = tuple[str, int, int, int, bytes]
"""The values of _COLUMNS."""


@dataclass(frozen=True)
class SmallStores:
    """The same messages in a store that was closed, and in one whose process was killed.

    Attributes:
        closed: after a clean close.
        killed: with everything flushed and known as flushed but for the last put.
        flushed_end: physical offset below which `killed` knows everything as flushed.
        rows: all messages, by their place in a queue.
    """

    closed: Path
    killed: Path
    flushed_end: int
    rows: dict[tuple[str, int, int], Row]


def settings(**changed: Any) -> StoreConfig:
    """The configuration of such a store."""
    return StoreConfig().with_overrides({k: str(v) for k, v in {**TINY, **changed}.items()})


def with_topics(path: Path | str, config: StoreConfig, **others: Any) -> StoreWriter:
    """Open a store, and create the topics of messages."""
    store = StoreWriter.open(path, config, **others)
    for topic in TOPICS:
        store.create_topic(topic, write_queue_nums=4)
    return store


def commit(store: StoreWriter, batch: int, first: int, count: int) -> None:
    """Stage and commit messages, as the batch of a query."""
    stage = store.batches.begin_stage(uuid.uuid4().hex)
    stage.append(block(first, count))
    store.batches.commit(CommitRequest(WriterId.of_stream("small", batch), (stage.finish(),)))


def make_stores(folder: Path) -> SmallStores:
    """Write them."""
    times = iter(range(1_700_000_000_000, NOW, 10_000))
    closed, killed = folder / "closed", folder / "killed"
    never = 3_600_000  # the last messages are not flushed, however long this takes
    config = settings(flushIntervalCommitLog=never)
    with with_topics(closed, config, clock=lambda: next(times)) as store:
        for number in range(10):
            assert store.put(block(number * 9, 9)).ok
        commit(store, 1, 90, 12)
        commit(store, 2, 102, 3)
        flushed_end = store.flush()["flushedOffset"]
        assert store.put(block(105, 5)).ok
        store.batches.begin_stage(uuid.uuid4().hex).append(block(500, 8))
        until(lambda: store.stats()["dispatchBehindBytes"] == 0)
        as_killed(closed, killed)
    rows = {row[:3]: row for row in rows_of(closed)}
    assert len(rows) == 110
    return SmallStores(closed, killed, flushed_end, rows)


def rows_of(path: Path) -> list[Row]:
    """All messages in the queues of users, as a reader finds them."""
    options = ReadOptions(columns=_COLUMNS)
    with Store.open(path) as store:
        return [
            (row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"], row["body"])
            for queue in store.queues()
            if queue.topic in TOPICS
            for batch in store.read(queue.topic, queue.queue_id, options=options)
            for row in batch.to_pylist()
        ]
