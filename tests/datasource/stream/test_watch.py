"""Which queues a stream checks when its log grows, so that it misses none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.datasource.sources.store_watch import StoreWatch
from rmqstore_spark.reader.growth import LogGrowth
from rmqstore_spark.reader.queue import Queue
from tests.datasource.driving import Clock, GrowingStore

QUEUES = 40


class Watched:
    """A store of some topics, and a watch over it. No time passes unless the test says so."""

    def __init__(self, path: Path, **options: str) -> None:
        self.growing = GrowingStore(path, {"orders": QUEUES, "bills": 2}, segment_size=8 << 20)
        self.growing.put(10 * QUEUES)
        self.clock = Clock()
        given = {"path": str(path), "brokerNames": "b", **options}
        self.options = parse_options(given, streaming=True)
        (self.source,) = open_sources(self.options)
        self.watch = self.followed()
        self.checked: list[tuple[str, int]] = []
        # The first round over all queues may have been too early for some of them.
        self.watch.look()
        assert not self.watch.look()

    def followed(self) -> StoreWatch:
        self.source.follow(self.options.queues, 1.0, self.clock)
        assert isinstance(self.source.watched, StoreWatch)
        return self.source.watched

    def ends(self) -> dict[tuple[str, int], int]:
        return {k[1:]: chosen.queue.max_offset for k, chosen in self.watch.queues.items()}

    def put(self, queue_id: int, topic: str = "orders", **columns: Any) -> None:
        values = {"topic": topic, "queueId": queue_id, "body": b"x", **columns}
        self.growing.builder.append(pa.RecordBatch.from_pylist([values]))
        self.growing.builder.flush()

    def file(self, queue_id: int) -> Path:
        return self.growing.path / "consumequeue" / "orders" / str(queue_id) / f"{0:020}"

    def hide(self, queue_id: int) -> bytes:
        """Take the newest entry of a queue away, as if it were not dispatched yet."""
        path = self.file(queue_id)
        data = path.read_bytes()
        last = max(at for at in range(0, len(data), 20) if any(data[at : at + 20]))
        path.write_bytes(data[:last] + bytes(len(data) - last))
        return data


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(tmp_path / "store")
    refresh = Queue.refresh

    def counted(queue: Queue, **options: bool) -> bool:
        made.checked.append((queue.topic, queue.queue_id))
        return refresh(queue, **options)

    monkeypatch.setattr(Queue, "refresh", counted)
    yield made
    made.source.close()


def grown(before: Mapping[tuple[str, int], int], watched: Watched) -> dict[tuple[str, int], int]:
    """By how much the queues have grown."""
    after = watched.ends()
    return {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)}


def test_only_the_queues_of_new_records_are_checked(watched: Watched) -> None:
    for number in range(QUEUES):
        before = watched.ends()
        watched.put(number)
        watched.put(number)
        watched.put(number // 2)
        assert watched.watch.look()
        wanted = {("orders", number): 2}
        wanted[("orders", number // 2)] = wanted.get(("orders", number // 2), 0) + 1
        assert grown(before, watched) == wanted
        assert not watched.watch.look()
    assert len(watched.checked) == 2 * QUEUES - 1


def test_records_of_other_topics_cost_no_check(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "store", subscribe="bills")
    rounds = watched.watch._checked
    for number in range(20):
        watched.put(number)
        assert not watched.watch.look()
    assert watched.watch._checked == rounds
    watched.put(1, "bills")
    assert watched.watch.look()


def test_other_queues_of_an_assigned_topic_cost_no_check(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "store", assign='{"orders":[3,4]}')
    watched.put(5)
    assert not watched.watch.look()
    watched.put(4)
    assert watched.watch.look()
    assert watched.watch.queues.keys() == {QueueKey("b", "orders", n) for n in (3, 4)}


def test_a_record_that_is_dispatched_late_is_awaited(watched: Watched) -> None:
    before = watched.ends()
    watched.put(7)
    after = watched.hide(7)
    for _ in range(3):
        assert not watched.watch.look()
    watched.put(8)  # others continue meanwhile
    assert watched.watch.look()
    watched.file(7).write_bytes(after)
    assert watched.watch.look()
    assert grown(before, watched) == {("orders", 7): 1, ("orders", 8): 1}
    assert set(watched.checked) == {("orders", 7), ("orders", 8)}


def test_a_record_that_is_never_dispatched_is_not_awaited_for_ever(watched: Watched) -> None:
    watched.put(7)
    watched.hide(7)
    while watched.checked[-3:] != [("orders", 7)] * 3:
        assert not watched.watch.look()
    watched.clock.sleep(4)
    assert not watched.watch.look()
    assert {k for k, _ in watched.ends()} <= {topic for topic, _ in watched.checked}  # all, once
    watched.checked.clear()
    for _ in range(5):
        assert not watched.watch.look()
    assert not watched.checked


def test_a_new_queue_that_is_made_late_is_found(watched: Watched) -> None:
    watched.clock.sleep(1)
    watched.put(QUEUES)
    folder = watched.file(QUEUES).parent
    away = folder.rename(watched.growing.path / "away")
    assert not watched.watch.look()
    away.rename(folder)
    watched.clock.sleep(1)
    watched.put(0)
    assert watched.watch.look()
    assert watched.ends()["orders", QUEUES] == 1


def test_what_comes_between_two_steps_of_a_look_is_found(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = watched.ends()
    moved = LogGrowth.moved

    def moved_before_more_comes(tip: LogGrowth) -> bool:
        result = moved(tip)
        watched.put(20)
        watched.put(10)
        return result

    watched.put(10)
    with monkeypatch.context() as patched:
        patched.setattr(LogGrowth, "moved", moved_before_more_comes)
        assert watched.watch.look()  # queue 10 is found to reach behind what was walked
    assert watched.watch.look()
    assert grown(before, watched) == {("orders", 10): 2, ("orders", 20): 1}


@pytest.mark.parametrize("is_first", [False, True])
def test_what_comes_during_a_round_over_all_queues_is_found(
    watched: Watched, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = watched.ends()
    counted = Queue.refresh
    came: list[Queue] = []

    def refresh(queue: Queue, **options: bool) -> bool:
        if (queue.topic, queue.queue_id) == ("orders", QUEUES - 1) and not came:
            came.append(queue)
            watched.put(0)  # which this round has passed
            watched.put(QUEUES - 1)
        return counted(queue, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "refresh", refresh)
        if is_first:
            watch = watched.watch = watched.followed()
        else:
            watch = watched.watch
            watch.check()
    assert came
    assert ("orders", 0) not in grown(before, watched)
    assert watch.look()
    assert grown(before, watched) == {("orders", 0): 1, ("orders", QUEUES - 1): 1}


def test_a_large_record_is_found(watched: Watched) -> None:
    before = watched.ends()
    watched.put(1, body=bytes(3 << 20))
    watched.put(2)
    assert watched.watch.look()
    assert grown(before, watched) == {("orders", 1): 1, ("orders", 2): 1}


def test_a_topic_that_was_deleted_is_noticed(watched: Watched) -> None:
    for queue_id in range(2):
        (watched.growing.path / "consumequeue" / "bills" / str(queue_id)).rename(
            watched.growing.path / f"away{queue_id}"
        )
    (watched.growing.path / "consumequeue" / "bills").rmdir()
    watched.clock.sleep(1)
    watched.put(3)  # another queue's record makes the stream list the topics
    assert watched.watch.look()
    assert {key.topic for key in watched.watch.queues} == {"orders"}
