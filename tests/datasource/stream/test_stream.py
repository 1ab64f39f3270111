"""Streams by Spark's own protocol. Through a JVM: `test_spark_stream.py`."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from rmqstore_spark.datasource.spark_api import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import (
    CorruptStoreError,
    DataLossError,
    OptionError,
    RmqStoreError,
    TopicNotFoundError,
    UnsupportedStoreError,
)
from tests.datasource.driving import ALL, Golden, GrowingStore, Stream, keys_of
from tests.support.messages.batches import rows_block
from tests.support.sampling import examples
from tests.support.stores.expected import expected_rows
from tests.support.stores.golden import load_queues

Key = tuple[str, int, int]


@pytest.fixture
def growing(tmp_path: Path) -> GrowingStore:
    """A store with 100 messages."""
    store = GrowingStore(tmp_path / "b" / "store")
    store.put(100)
    return store


def flat(batches: list[list[dict[str, Any]]]) -> list[Key]:
    return [key for rows in batches for key in keys_of(rows)]


def assert_each_once(got: list[Key], wanted: list[Key]) -> None:
    """All messages, each once, every queue in its order."""
    assert sorted(got) == sorted(wanted)
    for queue in {key[:2] for key in got}:
        offsets = [key[2] for key in got if key[:2] == queue]
        assert offsets == sorted(offsets)


# ---- where it starts ----------------------------------------------------------------------------


def test_a_stream_starts_at_latest_unless_told(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    assert stream.next_batch() == []
    growing.put(7)
    assert_each_once(flat(stream.drain()), growing.rows[100:])


def test_initial_offset_is_the_same_within_a_reader(growing: GrowingStore) -> None:
    # Spark asks before and after latestOffset: what came between would be lost.
    stream = Stream(growing.path)
    first = stream.initial()
    growing.put(10)
    stream.clock.sleep(60)
    end = stream.latest(first)
    assert stream.initial() == first
    assert_each_once(
        keys_of(stream.read(stream.partitions(stream.initial(), end))), growing.rows[100:]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"orders":{"0":40,"1":-1}}'}, 40),
        ({"startingTimestamp": 1_700_000_000_004}, 20),
    ],
)
def test_starting_positions(options: dict[str, Any], first: int, growing: GrowingStore) -> None:
    rows = Stream(growing.path, **options).next_batch()
    assert rows is not None
    assert min(row["queueOffset"] for row in rows if row["queueId"] == 0) == first


def test_positions_that_do_not_fit_are_told_by_the_first_method(growing: GrowingStore) -> None:
    stream = Stream(growing.path, startingOffsets='{"orders":{"0":40}}')
    with pytest.raises(OptionError, match="does not list orders/1"):
        stream.initial()
    with pytest.raises(TopicNotFoundError, match="Existing topics: orders"):
        Stream(growing.path, subscribe="bills").initial()


# ---- a restart ----------------------------------------------------------------------------------


def test_a_restart_neither_loses_nor_repeats(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    got = []
    for count in (0, 13, 1, 250):
        growing.put(count)
        stream = Stream(growing.path, checkpoint, startingOffsets="earliest")
        got += flat(stream.drain())
    assert_each_once(got, growing.rows)


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_first_batch_that_never_committed_begins_where_the_first_run_did(
    starting: str, growing: GrowingStore
) -> None:
    checkpoint: list[str] = []
    first = Stream(growing.path, checkpoint, startingOffsets=starting)
    start = first.initial()
    growing.put(20)
    first.clock.sleep(60)
    checkpoint.append(first.latest(start))
    # The query dies here. New messages are past the batch's end, and the new run's
    # initial offset with it: partitions(start > end).
    growing.put(30)
    again = Stream(growing.path, checkpoint, committed=0, startingOffsets=starting)
    assert again.initial() != start or starting == "earliest"
    got = flat(again.drain())
    assert_each_once(got, growing.rows[100 if starting == "latest" else 0 :])


def test_a_first_batch_does_not_follow_options_that_were_changed(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    first = Stream(growing.path, checkpoint, startingOffsets='{"orders":{"0":40,"1":45}}')
    checkpoint.append(first.latest(first.initial()))
    again = Stream(growing.path, checkpoint, committed=0, startingOffsets="earliest")
    rows = again.next_batch()
    assert rows is not None
    assert sorted(keys_of(rows)) == [
        *(("orders", 0, n) for n in range(40, 50)),
        *(("orders", 1, n) for n in range(45, 50)),
    ]


def test_a_later_batch_that_never_committed_is_the_same_again(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    stream = Stream(growing.path, checkpoint, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    stream.next_batch()
    lost = stream.read(stream.plan_next())
    growing.put(50)
    again = Stream(growing.path, checkpoint, committed=1, startingOffsets="earliest")
    assert again.next_batch() == lost


def test_a_batch_can_be_planned_and_read_more_than_once(growing: GrowingStore) -> None:
    # A union of a stream with itself, and foreachBatch with two actions, do so.
    stream = Stream(growing.path, startingOffsets="earliest")
    start = stream.initial()
    end = stream.latest(start)
    once, twice = (stream.partitions(start, end) for _ in range(2))
    rows = stream.read(once)
    assert stream.read(once) == stream.read(twice) == rows
    assert_each_once(keys_of(rows), growing.rows)


def test_an_empty_range_has_no_partitions(growing: GrowingStore) -> None:
    stream = Stream(growing.path, startingOffsets="earliest")
    start = stream.initial()
    assert stream.partitions(start, start) == []
    end = stream.latest(start)
    assert stream.partitions(start, end)
    assert stream.partitions(end, end) == []


@hypothesis.settings(max_examples=examples(25))
@hypothesis.given(
    steps=st.lists(
        st.sampled_from(["put", "put more", "new queue", "run", "die", "restart"]),
        max_size=14,
    ),
    limits=st.sampled_from([{}, {"maxOffsetsPerTrigger": 5}, {"maxBytesPerTrigger": "2k"}]),
)
def test_whatever_happens_each_message_is_read_once(
    steps: list[str], limits: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    growing = GrowingStore(tmp_path_factory.mktemp("stream") / "store", {"t0": 2})
    growing.put(3)
    checkpoint: list[str] = []
    stream = Stream(growing.path, checkpoint, startingOffsets="earliest", **limits)
    got: list[Key] = []
    for number, step in enumerate(steps):
        stream.clock.sleep(2)
        if step.startswith("put"):
            growing.put(1 if step == "put" else 12, shuffled=True, seed=number)
        elif step == "new queue":
            growing.put(2, {f"t{number}": 1})
        elif step == "run":
            got += keys_of(stream.next_batch() or [])
        else:
            committed = stream.committed
            if step == "die" and committed == len(checkpoint):
                stream.plan_next()  # logged, perhaps read, never committed
            # Once there is a checkpoint it alone says where to read on.
            starting = "latest" if checkpoint else "earliest"
            stream = Stream(
                growing.path, checkpoint, committed=committed, startingOffsets=starting, **limits
            )
    stream.clock.sleep(2)
    got += flat(stream.drain())
    assert_each_once(got, growing.rows)


# ---- the checkpoint -----------------------------------------------------------------------------


def test_offsets_carry_broker_queue_and_physical_offset(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    stream = Stream(growing.path, checkpoint, startingOffsets="earliest", maxOffsetsPerTrigger=60)
    stream.drain()
    first, second = (json.loads(text)["queues"] for text in checkpoint)
    (segment,) = (growing.path / "commitlog").iterdir()
    log = segment.read_bytes()

    def told(queue: int, offset: int) -> str:
        """Where a record is, and a digest of all of it but its body, which follows byte 88."""
        at = growing.physical["orders", queue, offset]
        record = log[at : at + int.from_bytes(log[at : at + 4], "big")]
        behind = 88 + int.from_bytes(record[84:88], "big")
        return f"{at}#{hashlib.sha256(record[:88] + record[behind:]).hexdigest()[:12]}"

    assert first == {"b": {"orders": f"0:0..30@{told(0, 29)} 1:0..30@{told(1, 29)}"}}
    assert second == {"b": {"orders": f"0:50@{told(0, 49)} 1:50@{told(1, 49)}"}}


def test_nothing_new_gives_back_the_very_start(growing: GrowingStore) -> None:
    stream = Stream(growing.path, startingOffsets="earliest")
    stream.drain()
    start = stream.log[-1]
    assert stream.latest(start) == start
    # Also before anything of a topic was read on after its first batch, and after a restart.
    assert Stream(growing.path, [start]).latest(start) == start


def test_a_foreign_checkpoint_is_refused(growing: GrowingStore) -> None:
    with pytest.raises(RmqStoreError, match="another checkpointLocation"):
        Stream(growing.path).latest('{"orders": {"0": 5}}')


# ---- limits -------------------------------------------------------------------------------------


def test_rows_are_limited_and_no_queue_is_starved(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", {"large": 1})
    growing.put(500)
    growing.put(3, {"small": 1})
    stream = Stream(growing.path, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert stream.limit == ReadMaxRows(100)
    batches = stream.drain()
    assert [len(rows) for rows in batches] == [100, 100, 100, 100, 100, 3]
    assert [sum(r["topic"] == "small" for r in rows) for rows in batches[:3]] == [1, 1, 1]
    assert_each_once(flat(batches), growing.rows)


def test_read_all_available_overrules_the_limit(growing: GrowingStore) -> None:
    # Trigger.Once asks for all there is.
    stream = Stream(growing.path, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = stream.initial()
    rows = stream.read(stream.partitions(start, stream.latest(start, ALL)))
    assert len(rows) == 100


def test_bytes_are_limited(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", {"large": 1, "small": 1}, segment_size=1 << 20)
    growing.put(200, {"small": 1}, body_size=10)
    growing.put(200, {"large": 1}, body_size=(100, 3000))
    stream = Stream(growing.path, startingOffsets="earliest", maxBytesPerTrigger="64k")
    assert stream.limit == ReadMaxBytes(64 << 10)
    batches = stream.drain()
    sizes = [sum(row["storeSize"] for row in rows) for rows in batches]
    assert max(sizes) <= 68 << 10
    assert min(sizes[:-2]) > 50 << 10
    assert all({row["topic"] for row in rows} == {"large", "small"} for rows in batches[:-2])
    assert_each_once(flat(batches), growing.rows)


def test_both_limits_hold(growing: GrowingStore) -> None:
    stream = Stream(
        growing.path,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=30,
        maxBytesPerTrigger="3k",
    )
    sizes = [(len(r), sum(row["storeSize"] for row in r)) for r in stream.drain()]
    assert max(count for count, _ in sizes) <= 30
    assert max(size for _, size in sizes) <= 3 << 10


def test_one_message_larger_than_the_limit_is_read_all_the_same(growing: GrowingStore) -> None:
    batches = Stream(growing.path, startingOffsets="earliest", maxBytesPerTrigger="1").drain()
    assert [len(rows) for rows in batches] == [2] * 50


def test_messages_are_held_back_until_there_are_enough(growing: GrowingStore) -> None:
    stream = Stream(growing.path, minOffsetsPerTrigger=50, maxTriggerDelay="10s")
    assert stream.limit == ReadMinRows(50)
    stream.next_batch()
    growing.put(20)
    stream.clock.sleep(1)
    assert stream.next_batch() is None
    growing.put(35)
    stream.clock.sleep(1)
    assert len(stream.next_batch() or []) == 55
    growing.put(5)
    stream.clock.sleep(1)
    assert stream.next_batch() is None
    stream.clock.sleep(8)
    assert stream.next_batch() is None
    assert stream.latest(stream.log[-1], ReadAllAvailable()) != stream.log[-1]
    stream.clock.sleep(2)
    assert len(stream.next_batch() or []) == 5


def test_least_and_most_together(growing: GrowingStore) -> None:
    stream = Stream(growing.path, minOffsetsPerTrigger=30, maxOffsetsPerTrigger=40)
    stream.next_batch()
    growing.put(90)
    stream.clock.sleep(1)
    assert [len(rows) for rows in stream.drain()] == [40, 40]  # the last 10 are held back


# ---- AvailableNow -------------------------------------------------------------------------------


def test_available_now_ends_at_what_there_was(growing: GrowingStore) -> None:
    stream = Stream(
        growing.path,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=30,
        minOffsetsPerTrigger=25,  # would hold the last ones back for ever
    )
    stream.prepare_available_now()
    batches = [stream.next_batch()]
    growing.put(60)
    growing.put(5, {"new": 1})
    batches += stream.drain()
    assert [len(rows or []) for rows in batches] == [30, 30, 30, 10]
    more = Stream(growing.path, stream.log)
    more.prepare_available_now()
    got = flat([*(rows or [] for rows in batches), *more.drain()])
    assert_each_once(got, growing.rows)


def test_available_now_does_not_wait(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.prepare_available_now()
    before = stream.clock.now
    stream.drain()
    assert stream.clock.now == before


# ---- news ---------------------------------------------------------------------------------------


def test_new_topics_and_queues_start_at_earliest(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.next_batch()
    growing.put(30, {"orders": 4})
    growing.put(10, {"bills": 1})
    stream.clock.sleep(2)
    assert_each_once(flat(stream.drain()), growing.rows[100:])
    growing.put(10, {"%RETRY%group": 1})
    growing.put(1)
    stream.clock.sleep(2)
    assert flat(stream.drain()) == [growing.rows[-1]]


def test_only_chosen_topics_are_found(growing: GrowingStore) -> None:
    stream = Stream(growing.path, subscribePattern="b.*")
    assert stream.next_batch() == []
    growing.put(10)
    growing.put(10, {"bills": 1})
    stream.clock.sleep(2)
    assert_each_once(flat(stream.drain()), growing.rows[110:])


def test_a_batch_with_a_new_queue_is_the_same_after_a_restart(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    stream = Stream(growing.path, checkpoint)
    stream.next_batch()
    growing.put(10, {"bills": 1})
    stream.clock.sleep(2)
    lost = stream.read(stream.plan_next())
    assert_each_once(keys_of(lost), growing.rows[100:])
    growing.put(10, {"bills": 1})
    assert Stream(growing.path, checkpoint, committed=1).next_batch() == lost


def test_latest_offset_waits_a_little_for_news(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.next_batch()
    before = stream.clock.now
    assert stream.next_batch() is None
    assert 0.09 < stream.clock.now - before < 0.15

    assert_news_are_given_at_once(stream, growing)


def assert_news_are_given_at_once(stream: Stream, growing: GrowingStore) -> None:
    """Those that come while the stream waits for them."""

    def sleep(seconds: float) -> None:
        stream.clock.sleep(seconds)
        growing.put(1)

    stream.reader._sleep = sleep
    before = stream.clock.now
    assert len(stream.next_batch() or []) >= 1
    assert stream.clock.now - before < 0.09
    stream.reader._sleep = stream.clock.sleep


def test_an_idle_query_is_answered_less_often(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.next_batch()

    def answered_after() -> float:
        before = stream.clock.now
        assert stream.latest(stream.log[-1]) == stream.log[-1]
        return stream.clock.now - before

    began = stream.clock.now
    while stream.clock.now - began < 20:
        answered_after()
    assert 0.5 <= answered_after() < 0.55
    stream.clock.sleep(0.1)  # Spark did something else: another source, or a trigger's interval
    assert answered_after() < 0.15
    assert 0.5 <= answered_after() < 0.55
    assert_news_are_given_at_once(stream, growing)
    stream.drain()
    assert answered_after() < 0.15


def test_an_entry_that_is_dispatched_late_is_found(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.next_batch()
    queue = growing.path / "consumequeue" / "orders" / "0" / f"{0:020}"
    before = queue.read_bytes()
    growing.put(1, burst=1)
    after = queue.read_bytes()
    assert before != after
    queue.write_bytes(before)  # in the log, and not yet in its queue
    stream.clock.sleep(1)
    assert stream.next_batch() is None
    queue.write_bytes(after)
    stream.clock.sleep(1)
    assert flat(stream.drain()) == growing.rows[100:]


def test_the_newest_offsets_are_reported(growing: GrowingStore) -> None:
    stream = Stream(growing.path)
    stream.next_batch()
    growing.put(3)
    stream.clock.sleep(1)
    stream.drain()
    reported = stream.reader.reportLatestOffset()
    assert json.dumps(reported) == '{"queues": {"b": {"orders": "0:52 1:51"}}}'


def test_an_idle_stream_of_a_thousand_queues_costs_little(tmp_path: Path) -> None:
    growing = GrowingStore(
        tmp_path / "store", {f"t{n}": 100 for n in range(10)}, segment_size=1 << 20
    )
    growing.put(2000)
    stream = Stream(growing.path, startingOffsets="earliest")
    # What costs much is done the more seldom, the longer it takes: so work takes time here too.
    stream.reader._clock = lambda: stream.clock.now + time.process_time()
    stream.drain()
    start = stream.log[-1]
    stream.clock.sleep(30)  # it has been quiet for a while
    stream.latest(start)
    began, cpu = stream.clock.now, time.process_time()
    while stream.clock.now - began < 60:
        # With the parsing and printing that Spark's side of it does.
        assert stream.latest(start) == start
        json.dumps(stream.reader.reportLatestOffset())
    used = time.process_time() - cpu
    assert used / (stream.clock.now - began) < 0.02


# ---- losses -------------------------------------------------------------------------------------


def cut(growing: GrowingStore, queue_id: int, at: int) -> None:
    """Take a queue's entries from an offset on away, as a recovery does."""
    queue = growing.path / "consumequeue" / "orders" / str(queue_id) / f"{0:020}"
    data = bytearray(queue.read_bytes())
    data[at * 20 :] = bytes(len(data) - at * 20)
    queue.write_bytes(data)


def test_a_queue_that_was_cut(growing: GrowingStore, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").drain()
    cut(growing, 1, 40)
    with pytest.raises(DataLossError, match=r"read orders/1 of b up to 50, .* ends at 40"):
        Stream(growing.path, checkpoint).next_batch()
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        rows = Stream(growing.path, checkpoint, failOnDataLoss=False).next_batch()
    assert rows is not None
    assert keys_of(rows) == [("orders", 1, n) for n in range(40)]
    assert "The stream continues at its first message, 0" in caplog.text


def test_a_queue_that_was_cut_under_a_running_stream(growing: GrowingStore) -> None:
    stream = Stream(growing.path, startingOffsets="earliest")
    stream.drain()
    cut(growing, 0, 10)
    stream.clock.sleep(60)
    with pytest.raises(DataLossError, match=r"read orders/0 of b up to 50, .* ends at 10"):
        stream.drain()


def test_entries_that_vanished_before_the_mark(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").drain()
    cut(growing, 0, 10)
    growing.put(2)  # written at 50, behind a gap
    with pytest.raises(DataLossError, match="orders/0"):
        Stream(growing.path, checkpoint).next_batch()


def test_a_queue_that_was_made_anew_and_grew_as_long(tmp_path: Path, growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").drain()
    shutil.rmtree(growing.path)
    other = GrowingStore(growing.path)
    other.put(400, body_size=300)
    with pytest.raises(DataLossError, match=r"the message before that offset .* has changed"):
        Stream(growing.path, checkpoint).next_batch()
    got = flat(Stream(growing.path, checkpoint, failOnDataLoss=False).drain())
    assert_each_once(got, other.rows)


def test_a_topic_that_was_deleted(growing: GrowingStore) -> None:
    growing.put(10, {"bills": 1})
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").drain()
    shutil.rmtree(growing.path / "consumequeue" / "bills")
    with pytest.raises(DataLossError, match="Queue bills/0 of b no longer exists"):
        Stream(growing.path, checkpoint).next_batch()
    before = list(checkpoint)
    again = Stream(growing.path, checkpoint, failOnDataLoss=False)
    assert again.next_batch() is None
    assert checkpoint == before


def test_messages_that_expired_unread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    growing = GrowingStore(tmp_path / "b" / "store", {"orders": 1}, segment_size=16 << 10)
    growing.put(10)
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").drain()
    growing.put(400)
    segments = sorted((growing.path / "commitlog").iterdir())
    for segment in segments[:2]:
        segment.unlink()
    kept = [k for k, at in growing.physical.items() if at >= int(segments[2].name)]
    lost = 410 - len(kept) - 10
    with pytest.raises(DataLossError, match=f"^{lost} messages of orders/0 of b have expired"):
        Stream(growing.path, checkpoint).next_batch()
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        got = flat(Stream(growing.path, checkpoint, failOnDataLoss=False).drain())
    assert got == kept
    assert f"{lost} messages" in caplog.text


def test_a_batch_whose_messages_expired_before_it_ran_again(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "b" / "store", {"orders": 1}, segment_size=16 << 10)
    growing.put(400)
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").plan_next()
    segments = sorted((growing.path / "commitlog").iterdir())
    segments[0].unlink()
    kept = [k for k, at in growing.physical.items() if at >= int(segments[1].name)]
    with pytest.raises(DataLossError, match="messages of orders/0 of b, from 0 on, have expired"):
        Stream(growing.path, checkpoint, committed=0).next_batch()
    again = Stream(growing.path, checkpoint, committed=0, failOnDataLoss=False)
    assert flat(again.drain()) == kept


def test_a_batch_of_a_queue_that_was_made_anew(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    Stream(growing.path, checkpoint, startingOffsets="earliest").plan_next()
    shutil.rmtree(growing.path)
    other = GrowingStore(growing.path)
    other.put(400, body_size=300)
    with pytest.raises(DataLossError, match="hold other messages than before"):
        Stream(growing.path, checkpoint, committed=0).next_batch()
    again = Stream(growing.path, checkpoint, committed=0, failOnDataLoss=False)
    assert again.next_batch() == []
    assert_each_once(flat(again.drain()), other.rows)


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 12}, {"maxBytesPerTrigger": "3k"}])
def test_damaged_entries(limit: dict[str, Any], plan_by: str, growing: GrowingStore) -> None:
    queue = growing.path / "consumequeue" / "orders" / "0" / f"{0:020}"
    data = bytearray(queue.read_bytes())
    data[5 * 20 : 6 * 20] = bytes(20)
    data[30 * 20 : 31 * 20] = b"\xff" * 20
    queue.write_bytes(data)
    earliest: dict[str, Any] = {"startingOffsets": "earliest", "planBy": plan_by, **limit}
    with pytest.raises(CorruptStoreError, match="the entry of offset 5 of orders/0"):
        Stream(growing.path, None, **earliest).drain()
    got = flat(Stream(growing.path, None, mode="DROPMALFORMED", **earliest).drain())
    assert_each_once(got, sorted(set(growing.rows) - {("orders", 0, 5), ("orders", 0, 30)}))


# ---- the rest -----------------------------------------------------------------------------------


def test_a_store_without_queues_is_refused(golden: Golden) -> None:
    stream = Stream(golden("unclean-nocq") / "store")
    with pytest.raises(UnsupportedStoreError, match=r"A stream needs the queues .*planBy"):
        stream.initial()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_new_store_is_read_from_its_first_message(tmp_path: Path, is_ahead: bool) -> None:
    """Even if the log has it, and the queue comes in a moment."""
    path = tmp_path / "store"
    with StoreWriter.open(path, StoreConfig()) as store:
        stream = Stream(path, startingOffsets="earliest")
        with store.queues_later():
            if is_ahead:
                assert store.put(rows_block([b"first"], ("orders",))).ok
            assert flat(stream.drain()) == []
        store.fill_queues()
        assert store.put(rows_block([b"next"], ("orders",))).ok
        store.flush()
        stream.clock.sleep(60)
        assert flat(stream.drain()) == [("orders", 0, n) for n in range(1 + is_ahead)]


def test_wrong_options_and_columns_are_told_by_the_first_method(growing: GrowingStore) -> None:
    # Spark would hide an error of streamReader() behind one of its own.
    stream = Stream(growing.path, schema=StructType([StructField("partition", StringType())]))
    with pytest.raises(OptionError, match="Unknown column 'partition'"):
        stream.initial()
    with pytest.raises(OptionError, match="Option endingOffsets is for batch"):
        Stream(growing.path, endingOffsets="latest")


def test_several_stores(growing: GrowingStore, tmp_path: Path) -> None:
    other = GrowingStore(tmp_path / "c" / "store")
    other.put(10)
    stream = Stream(f"{growing.path},{other.path}", startingOffsets="earliest")
    batches = stream.drain()
    other.put(5)
    growing.put(2)
    stream.clock.sleep(1)
    batches += stream.drain()
    rows = [row for batch in batches for row in batch]
    for name, store in (("b", growing), ("c", other)):
        assert_each_once(keys_of(r for r in rows if r["brokerName"] == name), store.rows)


def test_small_ranges_share_a_task(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", {"wide": 200}, segment_size=1 << 20)
    growing.put(2000)
    some: dict[str, Any] = {"assign": json.dumps({"wide": list(range(0, 200, 10))})}
    options: dict[str, Any]
    for options in ({}, some):
        stream = Stream(growing.path, startingOffsets="earliest", **options)
        partitions = stream.plan_next()
        assert len(partitions) == 1
        rows = stream.read(partitions)
        wanted = [key for key in growing.rows if not options or key[1] % 10 == 0]
        assert_each_once(keys_of(rows), wanted)
    stream = Stream(growing.path, startingOffsets="earliest", minPartitions=8)
    assert len(stream.plan_next()) >= 8


@pytest.mark.parametrize("name", ["basic", "live", "lmq", "dledger", "trimmed", "v5basic"])
def test_golden_stores(name: str, golden: Golden) -> None:
    stream = Stream(
        golden(name) / "store",
        startingOffsets="earliest",
        includeSystemTopics=True,
        maxOffsetsPerTrigger=400,
    )
    stream.prepare_available_now()
    batches = stream.drain()
    wanted = keys_of(expected_rows(golden(name)))
    assert_each_once(flat(batches), wanted)
    assert len(batches) == -(-len(wanted) // 400)
    ends = {key: report.max_offset for key, report in load_queues(golden(name)).queues.items()}
    for topic, text in json.loads(stream.log[-1])["queues"][name].items():
        for queue in text.split(" "):
            queue_id, _, rest = queue.partition(":")
            end = int(rest.split("@")[0].split("..")[-1])
            assert end == ends[topic, int(queue_id)]


def test_no_limit_by_default(growing: GrowingStore) -> None:
    assert Stream(growing.path).limit == ReadAllAvailable()
