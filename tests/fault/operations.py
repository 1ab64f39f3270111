"""What writers do that are killed: puts and commits, each said before and after."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import PutResult, StoreWriter
from rmqstore_spark.errors import StoreWriteError
from tests.fault.messages import block

_UNIT: Final = 7
"""Messages of a unit: every other put is one of batches that must not span two segments."""


class Operations:
    """Operations on a store.

    Args:
        store: the store.
        say: takes the words of a line, as `Claims.take` does.
    """

    def __init__(self, store: StoreWriter, say: Callable[..., None]) -> None:
        self._store = store
        self._say = say

    @property
    def flushed(self) -> int:
        """The offset up to which the log is on disk."""
        return int(self._store.stats()["commitLogFlushedOffset"])

    def put(self, first: int, count: int) -> PutResult:
        """Put messages; every other put is one of units."""
        self._say("begin put", first, count)
        units = [min(_UNIT, first + count - at) for at in range(first, first + count, _UNIT)]
        result = self._store.put(block(first, count), units=units if first % 2 else None)
        if not result.ok:
            raise StoreWriteError(f"{result.status.value} {result.remark}")
        self._say("done put", first)
        return result

    def commit(self, first: int, count: int) -> None:
        """Commit a batch of two tasks, numbered by its first message."""
        self._say("begin commit", first, count)
        half = count // 2
        stages = []
        for at, rows in ((first, half), (first + half, count - half)):
            stage = self._store.batches.begin_stage(uuid.uuid4().hex)
            if rows:
                stage.append(block(at, rows))
            stages.append(stage.finish())
        writer = WriterId.of_stream("fault-test", first)
        self._store.batches.commit(CommitRequest(writer, tuple(stages)))
        self._say("done commit", first)
