"""Positions of topics and queues that a stream does not read for a while."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import DataLossError
from tests.datasource.driving import GrowingStore, Stream, keys_of
from tests.support.messages.traffic import FIRST_TIME

Rows = list[tuple[str, int, int]]
ALL = {"orders": 2, "bills": 2}
LATER = FIRST_TIME + 3_600_000

BOTH: dict[str, dict[str, Any]] = {
    "subscribe": {"subscribe": "orders,bills"},
    "subscribePattern": {"subscribePattern": "orders|bills"},
    "assign": {"assign": json.dumps({"orders": [0, 1], "bills": [0, 1]})},
}
NARROW: dict[str, dict[str, Any]] = {
    "subscribe": {"subscribe": "orders"},
    "subscribePattern": {"subscribePattern": "or.*"},
    "assign": {"assign": json.dumps({"orders": [0, 1]})},
}


@pytest.fixture
def store(tmp_path: Path) -> GrowingStore:
    made = GrowingStore(tmp_path / "b", ALL)
    made.put(40)
    return made


def drained(store: GrowingStore, checkpoint: list[str], **options: Any) -> Rows:
    stream = Stream(store.path, checkpoint, **{"startingOffsets": "earliest", **options})
    try:
        return keys_of(row for batch in stream.drain() for row in batch)
    finally:
        stream.reader.stop()


@pytest.mark.parametrize("option", list(BOTH))
@pytest.mark.parametrize("loss", [True, False])
def test_a_topic_that_is_not_chosen_for_a_while_continues_where_it_was(
    store: GrowingStore, option: str, loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint: list[str] = []
    both, narrow = BOTH[option], NARROW[option]
    assert len(drained(store, checkpoint, failOnDataLoss=loss, **both)) == 40
    store.put(3, {"bills": 1}, first_time=LATER)
    store.put(2, {"orders": 1}, first_time=LATER)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        found = drained(store, checkpoint, failOnDataLoss=loss, **narrow)
    assert [topic for topic, _, _ in found] == ["orders"] * 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("Not chosen any more: topic bills of b.")
    assert option in told
    found = drained(store, checkpoint, failOnDataLoss=loss, **both)
    assert found == [("bills", 0, number) for number in (10, 11, 12)]


def test_nothing_new_of_what_is_still_chosen_is_no_micro_batch(store: GrowingStore) -> None:
    checkpoint: list[str] = []
    drained(store, checkpoint)
    before = list(checkpoint)
    assert drained(store, checkpoint, subscribe="orders") == []
    assert checkpoint == before


def test_a_queue_that_is_not_chosen_for_a_while(
    store: GrowingStore, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint: list[str] = []
    drained(store, checkpoint, assign=json.dumps({"orders": [0, 1]}))
    store.put(4, {"orders": 2}, first_time=LATER)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        assert len(drained(store, checkpoint, assign=json.dumps({"orders": [1]}))) == 2
    assert "Not chosen any more: queue orders/0 of b." in caplog.text
    found = drained(store, checkpoint, assign=json.dumps({"orders": [0, 1]}))
    assert found == [("orders", 0, 10), ("orders", 0, 11)]


def test_system_topics_that_are_not_chosen_for_a_while(store: GrowingStore) -> None:
    store.put(5, {"%RETRY%g": 1}, first_time=LATER)
    checkpoint: list[str] = []
    assert len(drained(store, checkpoint, includeSystemTopics=True)) == 45
    assert drained(store, checkpoint) == []
    store.put(2, {"%RETRY%g": 1}, first_time=LATER)
    assert len(drained(store, checkpoint, includeSystemTopics=True)) == 2


def test_a_topic_that_was_recreated_while_it_was_not_chosen(store: GrowingStore) -> None:
    checkpoint: list[str] = []
    drained(store, checkpoint)
    for number in (0, 1):
        shutil.rmtree(store.path / "consumequeue" / "bills" / str(number))
    assert drained(store, checkpoint, subscribe="orders") == []
    again = GrowingStore(store.path, ALL)
    again.put(40, first_time=LATER)
    moved = store.path  # filled again, with records of the same sizes at the same places
    with pytest.raises(DataLossError, match=r"bills/0 .*has changed|orders/0 .*has changed"):
        Stream(moved, list(checkpoint)).drain()


@pytest.mark.parametrize("same", [True, False])
def test_a_topic_that_vanishes_and_comes_back(
    store: GrowingStore, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint: list[str] = []
    drained(store, checkpoint)
    folder = store.path / "consumequeue" / "bills"
    away = folder.rename(store.path.parent / "away")
    with pytest.raises(DataLossError, match="Queue bills/0 of b no longer exists"):
        drained(store, checkpoint)
    stream = Stream(store.path, checkpoint, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        assert stream.drain() == []
        store.put(2, {"orders": 1}, first_time=LATER)
        stream.clock.sleep(60)
        assert [len(rows) for rows in stream.drain()] == [2]
    assert caplog.text.count("Queue bills/0 of b no longer exists") == 1
    shutil.copytree(away, folder)
    if not same:  # the entries of other records, as a topic that was created again has them
        shutil.rmtree(folder / "0")
        shutil.copytree(store.path / "consumequeue" / "orders" / "0", folder / "0")
    stream.clock.sleep(60)
    if same:
        assert stream.drain() == []
        assert drained(store, checkpoint) == []
        return
    with pytest.raises(DataLossError, match="bills/0 of b up to 10, but"):
        drained(store, checkpoint)


def test_a_promised_batch_is_read_whole_although_fewer_topics_are_chosen_now(
    store: GrowingStore,
) -> None:
    checkpoint: list[str] = []
    first = Stream(store.path, checkpoint, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    assert len(first.next_batch() or []) == 20
    assert first.plan_next()
    again = Stream(store.path, checkpoint, committed=1, subscribe="orders")
    rows = again.next_batch()
    assert rows is not None
    assert sorted({row["topic"] for row in rows}) == ["bills", "orders"]
    assert len(rows) == 20
    assert again.drain() == []
