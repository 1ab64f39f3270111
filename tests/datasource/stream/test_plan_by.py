"""Micro-batches planned by queue and along the log: the same rows, exactly those of the offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from rmqstore_spark.datasource.offsets import as_start, decode_offsets
from rmqstore_spark.datasource.sources.store import StorePartition
from rmqstore_spark.errors import CorruptRecordError, DataLossError, UnsupportedStoreError
from rmqstore_spark.layout.constants import is_system_topic
from rmqstore_spark.reader.options import LogSplit, QueueSplit
from tests.datasource.conftest import by_broker
from tests.datasource.driving import Golden, GrowingStore, Stream, keys_of
from tests.support.stores.expected import backed_rows
from tests.support.stores.golden import GOLDEN_NAMES
from tests.support.stores.records import commitlog_folders

PLANS = ("queue", "commitlog", "auto")
EARLIEST: dict[str, Any] = {"startingOffsets": "earliest"}

by_each_plan = pytest.mark.parametrize("plan_by", PLANS)

Row = dict[str, Any]


@pytest.fixture
def growing(tmp_path: Path) -> GrowingStore:
    """A store with 300 messages in six queues."""
    store = GrowingStore(tmp_path / "b" / "store", {"orders": 4, "bills": 2}, segment_size=32 << 10)
    store.put(300, shuffled=True)
    return store


def promised(start: str, end: str) -> list[tuple[str, str, int, int]]:
    """The messages between two offsets of a checkpoint, as broker, topic, queue and offset."""
    begins = as_start(decode_offsets(json.loads(start)))
    return sorted(
        (*key, offset)
        for key, mark in decode_offsets(json.loads(end)).items()
        for offset in range(begins[key].next if mark.begin is None else mark.begin, mark.next)
    )


def read_again(stream: Stream, number: int) -> list[Row]:
    """Plan and read a micro-batch that was run before."""
    start = stream.log[number - 1] if number else stream.initial()
    return stream.read(stream.partitions(start, stream.log[number]))


def assert_exact(stream: Stream, batches: Sequence[Sequence[Row]]) -> None:
    """Each micro-batch has the rows of its offsets, each queue in order, and again on replay."""
    for number, rows in enumerate(batches):
        keys = [(row["brokerName"], *key) for row, key in zip(rows, keys_of(rows), strict=True)]
        assert sorted(keys) == promised(
            stream.log[number - 1] if number else stream.initial(), stream.log[number]
        )
        last: dict[tuple[str, str, int], int] = {}
        for broker, topic, queue_id, offset in keys:
            assert last.get((broker, topic, queue_id), -1) < offset
            last[broker, topic, queue_id] = offset
        assert read_again(stream, number) == list(rows)


def kinds(partitions: Sequence[InputPartition]) -> set[type]:
    found = set()
    for partition in partitions:
        assert isinstance(partition, StorePartition)
        found |= {type(split) for split in partition.splits}
    return found


def stores(golden: Golden, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The path of several golden stores, and the options to read all of them."""
    folders = {name: commitlog_folders(golden(name)) for name in names}
    logs = {name: [str(f) for f in found] for name, found in folders.items() if len(found) > 1}
    return json.dumps([str(golden(name) / "store") for name in names]), {
        "includeSystemTopics": True,
        "brokerNames": ",".join(names),
        "storePathCommitLog": json.dumps(logs),
    }


# ---- all stores ---------------------------------------------------------------------------------


@by_each_plan
def test_every_golden_store_in_one_stream(plan_by: str, golden: Golden) -> None:
    names = [name for name in GOLDEN_NAMES if name != "unclean-nocq"]
    path, options = stores(golden, names)
    stream = Stream(path, planBy=plan_by, maxOffsetsPerTrigger=8000, **EARLIEST, **options)
    stream.prepare_available_now()
    batches = stream.drain()
    assert len(batches) > 1
    assert_exact(stream, batches)
    rows = [row for batch in batches for row in batch]
    assert by_broker(rows) == {name: backed_rows(golden(name)) for name in names}


@by_each_plan
def test_a_store_without_queues(plan_by: str, golden: Golden) -> None:
    path, options = stores(golden, ["tiny", "unclean-nocq"])
    with pytest.raises(UnsupportedStoreError, match=r"A stream needs the queues of .*nocq"):
        Stream(path, planBy=plan_by, **options).initial()


# ---- what is read -------------------------------------------------------------------------------


@by_each_plan
@pytest.mark.parametrize(
    "limits",
    [
        {"maxOffsetsPerTrigger": 41},
        {"maxBytesPerTrigger": "9k"},
        {"maxOffsetsPerTrigger": 100, "minPartitions": 5},
        {"maxBytesPerPartition": "4k"},
    ],
    ids=str,
)
def test_a_batch_is_exactly_its_offsets(
    limits: Mapping[str, Any], plan_by: str, growing: GrowingStore
) -> None:
    stream = Stream(growing.path, planBy=plan_by, **EARLIEST, **limits)
    batches = stream.drain()
    growing.put(50, {"orders": 5})
    growing.put(50, {"news": 1})
    stream.clock.sleep(1)
    batches += stream.drain()
    assert_exact(stream, batches)
    assert sorted(keys_of(r for rows in batches for r in rows)) == sorted(growing.rows)


@by_each_plan
def test_tags(plan_by: str, growing: GrowingStore) -> None:
    growing.put(200, tags=("TagA", "TagB", "TagC"))
    every = [row for rows in Stream(growing.path, **EARLIEST).drain() for row in rows]
    stream = Stream(
        growing.path, planBy=plan_by, tags="TagA || TagC", maxOffsetsPerTrigger=90, **EARLIEST
    )
    batches = stream.drain()
    got = [row for rows in batches for row in rows]
    assert sorted(keys_of(got)) == sorted(
        keys_of(row for row in every if row["tags"] in ("TagA", "TagC"))
    )
    assert read_again(stream, len(batches) - 1) == batches[-1]


def test_a_checkpoint_can_go_on_with_another_plan(growing: GrowingStore) -> None:
    checkpoint: list[str] = []
    got: list[Row] = []
    for number in range(9):
        options: dict[str, Any] = {"planBy": PLANS[number % 3], "maxOffsetsPerTrigger": 37}
        got += Stream(growing.path, checkpoint, **EARLIEST, **options).next_batch() or []
        # A batch that was planned, and never committed, is read again by the next plan.
        Stream(growing.path, checkpoint, **options).plan_next()
        again = {**options, "planBy": PLANS[(number + 1) % 3]}
        committed = len(checkpoint) - 1
        got += Stream(growing.path, checkpoint, committed=committed, **again).next_batch() or []
        growing.put(40)
    got += [row for rows in Stream(growing.path, checkpoint).drain() for row in rows]
    assert sorted(keys_of(got)) == sorted(growing.rows)


# Three micro-batches of 300 rows of the golden store `live`, as the source wrote them when streams
# had no planBy. The third one was planned, and its query ended before it was run.
WRITTEN_BEFORE = [
    (
        '{"version": 1, "queues": {"b": {"LiveBatch": "1:0..16@216136", "LiveDelay": '
        '"0:0..1@242976 3:0..1@240907", "LiveOrder": "0:0..2@225665 1:0..2@226745 2:0..2@227827 '
        '3:0..2@228917", "LiveTopic": "0:0..68@63494 1:0..68@63717 2:0..67@63013 3:0..67@62295", '
        '"LiveTran": "1:0..2@235014 3:0..2@233831"}}}'
    ),
    (
        '{"version": 1, "queues": {"b": {"LiveBatch": "1:31@219766", "LiveDelay": "0:1@242976 '
        '3:1@240907", "LiveOrder": "0:4@226097 1:4@227177 2:4@228263 3:4@229353", "LiveTopic": '
        '"0:136@127750 1:136@127983 2:136@128206 3:136@127488", '
        '"LiveTran": "1:4@240078 3:3@235753"}}}'
    ),
    (
        '{"version": 1, "queues": {"b": {"LiveBatch": "1:46@223396", "LiveDelay": "0:1@242976 '
        '3:1@240907", "LiveOrder": "0:5@226313 1:5@227393 2:5@228481 3:5@229571", "LiveTopic": '
        '"0:206@193894 1:206@194117 2:206@194350 3:205@192695", '
        '"LiveTran": "1:5@242521 3:4@239647"}}}'
    ),
]


@by_each_plan
def test_a_checkpoint_that_was_written_before_streams_had_plans(
    plan_by: str, golden: Golden
) -> None:
    path = golden("live") / "store"
    options: dict[str, Any] = {"planBy": plan_by, "brokerNames": "b", **EARLIEST}
    stream = Stream(path, list(WRITTEN_BEFORE), committed=2, **options)
    rest = stream.drain()
    batches = [read_again(stream, 0), read_again(stream, 1), *rest]
    assert [len(rows) for rows in batches[:3]] == [300, 300, 300]
    assert_exact(stream, batches)
    rows = [row for batch in batches for row in batch]
    stored = [row for row in backed_rows(golden("live")) if not is_system_topic(row["topic"])]
    assert by_broker(rows) == {"b": stored}


@by_each_plan
def test_a_checkpoint_of_an_older_version(plan_by: str, growing: GrowingStore) -> None:
    # As version 1 writes it: the first batch of `orders/2`, and batches of the other queues.
    places = growing.physical
    offsets = {
        "bills": " ".join(f"{n}:20@{places['bills', n, 19]}" for n in range(2)),
        "orders": " ".join(
            [
                *(f"{n}:20@{places['orders', n, 19]}" for n in range(2)),
                f"2:5..20@{places['orders', 2, 19]}",
                f"3:20@{places['orders', 3, 19]}",
            ]
        ),
    }
    checkpoint = [json.dumps({"version": 1, "queues": {"b": offsets}})]
    rows = [r for b in Stream(growing.path, checkpoint, planBy=plan_by).drain() for r in b]
    assert sorted(keys_of(rows)) == sorted(key for key in growing.rows if key[2] >= 20)


# ---- how it is planned --------------------------------------------------------------------------


def test_the_plan_is_the_one_asked_for(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", {"most": 8, "least": 1}, segment_size=1 << 20)
    growing.put(4_000, shuffled=True)

    def planned(**options: Any) -> set[type]:
        return kinds(Stream(growing.path, **EARLIEST, **options).plan_next())

    assert planned() == planned(planBy="commitlog") == {LogSplit}
    assert planned(planBy="queue") == {QueueSplit}
    few: dict[str, Any] = {"maxOffsetsPerTrigger": 100}
    assert planned(**few) == {LogSplit}
    # One queue of nine: following it along the log would read little of a long stretch.
    assert planned(subscribe="least", **few) == {QueueSplit}
    assert planned(subscribe="least", planBy="commitlog", **few) == {LogSplit}


def test_each_store_is_planned_by_its_own_shape(growing: GrowingStore, tmp_path: Path) -> None:
    one = GrowingStore(tmp_path / "c" / "store", {"single": 1})
    one.put(50)
    stream = Stream(f"{growing.path},{one.path}", **EARLIEST)
    assert kinds(stream.plan_next()) == {LogSplit, QueueSplit}
    rows = stream.next_batch() or read_again(stream, 0)
    assert sorted(keys_of(rows)) == sorted(growing.rows + one.rows)


# ---- what is lost or damaged --------------------------------------------------------------------


@by_each_plan
def test_messages_that_expire_between_plan_and_read(plan_by: str, growing: GrowingStore) -> None:
    failing = Stream(growing.path, planBy=plan_by, **EARLIEST)
    skipping = Stream(growing.path, planBy=plan_by, failOnDataLoss=False, **EARLIEST)
    planned = failing.plan_next(), skipping.plan_next()
    segments = sorted((growing.path / "commitlog").iterdir())
    segments[0].unlink()
    with pytest.raises(DataLossError):
        failing.read(planned[0])
    kept = [k for k, at in growing.physical.items() if at >= int(segments[1].name)]
    assert sorted(keys_of(skipping.read(planned[1]))) == sorted(kept)


@by_each_plan
def test_expired_heads(plan_by: str, growing: GrowingStore) -> None:
    segments = sorted((growing.path / "commitlog").iterdir())
    segments[0].unlink()
    stream = Stream(growing.path, planBy=plan_by, maxOffsetsPerTrigger=70, **EARLIEST)
    batches = stream.drain()
    kept = [k for k, at in growing.physical.items() if at >= int(segments[1].name)]
    assert sorted(keys_of(r for rows in batches for r in rows)) == sorted(kept)
    assert_exact(stream, batches)


@by_each_plan
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 60}], ids=str)
def test_a_damaged_record(limit: dict[str, Any], plan_by: str, growing: GrowingStore) -> None:
    key = ("orders", 1, 20)
    log = growing.path / "commitlog"
    at = growing.physical[key]
    segment = max(s for s in sorted(log.iterdir()) if int(s.name) <= at)
    data = bytearray(segment.read_bytes())
    data[at - int(segment.name) + 95] ^= 0xFF  # in the body
    segment.write_bytes(data)
    options: dict[str, Any] = {"planBy": plan_by, **EARLIEST, **limit}
    with pytest.raises(CorruptRecordError, match="CRC"):
        Stream(growing.path, **options).drain()
    batches = Stream(growing.path, mode="DROPMALFORMED", **options).drain()
    rows = [row for batch in batches for row in batch]
    assert sorted(keys_of(rows)) == sorted(set(growing.rows) - {key})
