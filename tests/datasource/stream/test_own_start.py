"""A stream on Spark before 4.2, which names neither the start of a micro-batch nor a limit."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.datasource.schema import full_schema
from rmqstore_spark.datasource.spark_api import OwnStartReader
from rmqstore_spark.datasource.stream.reader import RmqStoreStreamReader
from rmqstore_spark.errors import RmqStoreError
from tests.datasource.driving import Clock, GrowingStore, keys_of, read_all, rows_in, source

EARLIEST: dict[str, Any] = {"startingOffsets": "earliest"}


@pytest.fixture
def growing(tmp_path: Path) -> GrowingStore:
    """A store with 100 messages, half of them in each of two queues."""
    store = GrowingStore(tmp_path / "b" / "store")
    store.put(100)
    return store


class OldSpark:
    """A query as `MicroBatchExecution` of 4.0 and 4.1 runs it; each one on a log is a restart.

    Args:
        path: the store.
        log: the offset log of the checkpoint: an end for each micro-batch.
        committed: how many of them were committed.
    """

    def __init__(
        self, path: Path, log: list[str] | None = None, committed: int = 0, **options: Any
    ) -> None:
        self.clock = Clock()
        made = source(path, options).streamReader(full_schema())
        inner = made._reader if isinstance(made, OwnStartReader) else made
        assert isinstance(inner, RmqStoreStreamReader)
        self.task_side = pickle.loads(pickle.dumps(OwnStartReader(inner)))
        inner._clock, inner._sleep = self.clock, self.clock.sleep
        self.reader = OwnStartReader(inner)
        self.log = [] if log is None else log
        self.committed = committed
        if self.log:  # AcceptsLatestSeenOffset: of the offset log, not of the commits
            assert not self._planned(self.log[-1], self.log[-1])

    def _planned(self, start: str, end: str) -> list[Any]:
        return list(self.reader.partitions(json.loads(start), json.loads(end)))

    def _start(self) -> str:
        if self.committed:
            return self.log[self.committed - 1]
        return json.dumps(self.reader.initialOffset())

    def construct(self) -> bool:
        """Ask for the next end, and log it; returns whether there is anything new."""
        end = json.dumps(self.reader.latestOffset())
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def run_batch(self) -> list[tuple[str, int, int]]:
        """Run the micro-batch that was logged last."""
        parts = self._planned(self._start(), self.log[self.committed])
        self.committed += 1
        sent = [pickle.loads(pickle.dumps(part)) for part in parts]
        return keys_of(rows_in(read_all(self.task_side, sent)))

    def drain(self) -> list[list[tuple[str, int, int]]]:
        """Run micro-batches until nothing is new; first the one that was not committed."""
        batches = []
        while self.committed < len(self.log) or self.construct():
            batches.append(self.run_batch())
        return batches


def test_limits_are_kept_and_nothing_is_read_twice(growing: GrowingStore) -> None:
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=30)
    batches = query.drain()
    assert [len(rows) for rows in batches] == [30, 30, 30, 10]
    growing.put(5)
    batches += query.drain()
    assert sorted(key for rows in batches for key in rows) == sorted(growing.rows)


def test_a_limit_in_bytes(growing: GrowingStore) -> None:
    batches = OldSpark(growing.path, **EARLIEST, maxBytesPerTrigger="8k").drain()
    assert len(batches) > 2
    assert sorted(key for rows in batches for key in rows) == sorted(growing.rows)


def test_few_messages_wait_for_more_or_for_their_time(growing: GrowingStore) -> None:
    limits: dict[str, Any] = {"minOffsetsPerTrigger": 20, "maxTriggerDelay": "10s"}
    query = OldSpark(growing.path, **limits)
    assert query.drain() == [[]]  # batch 0 fixes where a stream at latest starts
    growing.put(15)
    assert query.drain() == []
    growing.put(5)
    assert [len(rows) for rows in query.drain()] == [20]
    growing.put(3)
    assert query.drain() == []
    query.clock.sleep(10)
    assert [len(rows) for rows in query.drain()] == [3]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_restart_continues_where_spark_does(
    growing: GrowingStore, starting: str, lost: int
) -> None:
    """With or without the commit of the last micro-batch, wherever a new stream would start."""
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=30)
    first = query.run_batch() if query.construct() else []
    second = query.run_batch() if query.construct() else []
    growing.put(11)
    again = OldSpark(
        growing.path, query.log, 2 - lost, startingOffsets=starting, maxOffsetsPerTrigger=40
    )
    batches = again.drain()
    if lost:
        assert sorted(batches.pop(0)) == sorted(second)
    assert [len(rows) for rows in batches] == [40, 11]
    read = [*first, *second, *(key for rows in batches for key in rows)]
    assert sorted(read) == sorted(growing.rows)


def test_a_first_batch_that_never_committed(growing: GrowingStore) -> None:
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=30)
    assert query.construct()
    growing.put(9)
    again = OldSpark(growing.path, query.log, 0)  # at latest, past the end of what is run again
    assert sorted(key for rows in again.drain() for key in rows) == sorted(growing.rows)


def test_a_batch_that_is_planned_more_than_once(growing: GrowingStore) -> None:
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=30)
    assert query.construct()
    start = json.dumps(query.reader.initialOffset())
    parts = [len(query._planned(start, query.log[0])) for _ in range(2)]
    assert parts[0] == parts[1] > 0
    assert [len(rows) for rows in query.drain()] == [30, 30, 30, 10]


def test_a_start_that_was_not_the_one_asked_from_is_an_error(growing: GrowingStore) -> None:
    """As if a restart had not named the last end: the stream would go back."""
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=60)
    assert query.construct()
    query.run_batch()
    unaware = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=30)
    end = unaware.reader.latestOffset()
    with pytest.raises(RmqStoreError, match="it would read messages twice"):
        unaware.reader.partitions(json.loads(query.log[0]), end)


def test_an_end_that_spark_asked_for_before_the_checkpoint_was_read(growing: GrowingStore) -> None:
    """`triggerAvailableNowWrapper` keeps that end; later answers are for the progress alone."""
    query = OldSpark(growing.path, **EARLIEST, maxOffsetsPerTrigger=60)
    assert query.construct()
    query.run_batch()
    wrapped = OldSpark(growing.path, **EARLIEST)
    kept = wrapped.reader.latestOffset()
    seen = json.loads(query.log[0])
    assert not wrapped.reader.partitions(seen, seen)
    for _ in range(2):
        wrapped.reader.latestOffset()
    with pytest.raises(RmqStoreError, match="triggerAvailableNowWrapper"):
        wrapped.reader.partitions(seen, kept)


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"maxOffsetsPerTrigger": 30}, 1), ({"maxBytesPerTrigger": 30}, 1), ({}, 0)],
)
def test_the_log_says_what_a_limit_does_to_available_now(
    growing: GrowingStore, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], told: int
) -> None:
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        OldSpark(growing.path, **EARLIEST, **limits).drain()
    assert sum("each run reads one micro-batch" in text for text in caplog.messages) == told
