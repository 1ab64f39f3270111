"""Small stores that tests write into, and what of their messages a reader finds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.waiting import eventually as until

__all__ = ["Clock", "as_killed", "config", "in_queues", "messages", "until"]

_PLACE = ReadOptions(columns=("topic", "queueId", "queueOffset", "physicalOffset", "body"))


def config(**settings: Any) -> StoreConfig:
    """Small files, and a disk that may be as full as it is."""
    small = {
        "mappedFileSizeCommitLog": 4096,
        "mappedFileSizeConsumeQueue": 200,
        "maxHashSlotNum": 50,
        "maxIndexNum": 100,
        "diskMaxUsedSpaceRatio": 100,
    }
    given = {**small, **settings}
    return StoreConfig().with_overrides({k: str(v) for k, v in given.items()})


def as_killed(store: Path, copy: Path) -> Path:
    """Copy a store that is open, as a kill would leave it; returns the copy.

    Its threads make files, and rename or remove them, meanwhile: what is gone is not copied.
    """

    def copied(source: str, target: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)

    return Path(shutil.copytree(store, copy, copy_function=copied))


class Clock:
    """A clock that tells what it was set to."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def messages(
    bodies: Sequence[bytes], *, topic: str = "T", queue_id: int | Sequence[int] = 0, **others: Any
) -> pa.RecordBatch:
    """Messages for `put_batch`.

    Args:
        bodies: one each.
        topic: of all of them.
        queue_id: of all, or of each.
        others: values of other columns of RECORD_COLUMNS, one a message.
    """
    count = len(bodies)
    queue_ids = [queue_id] * count if isinstance(queue_id, int) else list(queue_id)
    columns = {
        "topic": pa.array([topic] * count, pa.string()),
        "queueId": pa.array(queue_ids, pa.int32()),
        "body": pa.array(bodies, pa.binary()),
        **{name: pa.array(values) for name, values in others.items()},
    }
    return pa.RecordBatch.from_pydict(columns)


def in_queues(path: Path) -> dict[tuple[str, int], list[bytes]]:
    """The bodies in each queue that holds some, as a reader finds them."""
    with Store.open(path) as store:
        found = {}
        for queue in store.queues():
            rows = [
                row
                for batch in store.read(queue.topic, queue.queue_id, options=_PLACE)
                for row in batch.to_pylist()
            ]
            assert [row["queueOffset"] for row in rows] == list(
                range(queue.min_offset, queue.min_offset + len(rows))
            )
            if rows:
                found[queue.topic, queue.queue_id] = [row["body"] for row in rows]
        return found
