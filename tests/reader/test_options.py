"""What can be asked of a read: columns, tags, keys, decompression, portions."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.reader.plan import PlanLimits, plan, read_split
from rmqstore_spark.reader.store import default_broker_name
from tests.support.stores.expected import expected_rows, queue_key
from tests.support.stores.golden import load_records
from tests.support.stores.storebuilder import StoreBuilder, Traffic, build_store

Golden = Callable[[str], Path]


def whole(store: Store) -> list[QueueRange]:
    return [QueueRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]


def read(store: Store, options: ReadOptions, by: Any = "queue") -> list[dict[str, Any]]:
    splits = plan(store, whole(store), by=by)
    return [r for s in splits for b in read_split(store, s, options) for r in b.to_pylist()]


@pytest.mark.parametrize("by", ["queue", "commitlog"])
@pytest.mark.parametrize("name", ["basic", "extcq", "lmq", "delayed", "v5basic", "flags"])
def test_tags_choose_the_messages_that_have_them(golden: Golden, name: str, by: str) -> None:
    rows = expected_rows(golden(name))
    common = [tag for tag, _ in Counter(r["tags"] for r in rows if r["tags"]).most_common(3)]
    with Store.open(golden(name) / "store") as store:
        for tags in (frozenset(common[:1]), frozenset(common), frozenset({"no such tag"})):
            got = read(store, ReadOptions(columns=_IDENTITY, tags=tags), by)
            wanted = [queue_key(r) for r in rows if r["tags"] in tags]
            assert sorted(queue_key(r) for r in got) == wanted


_IDENTITY = ("topic", "queueId", "queueOffset")


def test_tags_of_one_hash_code_are_told_apart(tmp_path: Path) -> None:
    # "Aa" and "BB" are the classic pair: both hash to 2112.
    path = build_store(tmp_path / "store", Traffic(messages=400, tags=("Aa", "BB", "C")))
    with Store.open(path) as store:
        rows = read(store, ReadOptions(columns=("tags",), tags=frozenset({"BB"})))
    assert {r["tags"] for r in rows} == {"BB"}
    assert 80 < len(rows) < 200


@pytest.mark.parametrize("by", ["queue", "commitlog"])
def test_keys_choose_the_messages_that_have_them(golden: Golden, by: str) -> None:
    rows = expected_rows(golden("basic"))
    some = frozenset(key for r in rows[5:400:50] for key in (r["keys"] or ())[:1])
    assert len(some) >= 3
    with Store.open(golden("basic") / "store") as store:
        got = read(store, ReadOptions(columns=_IDENTITY, keys=some), by)
    wanted = [queue_key(r) for r in rows if some & set(r["keys"] or ())]
    assert sorted(queue_key(r) for r in got) == wanted


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_alone_is_as_among_all(golden: Golden, column: str) -> None:
    with Store.open(golden("live") / "store", broker_name="b") as store:
        queue = store.queue("LiveTopic", 1)
        (alone,) = store.read(queue.topic, 1, options=ReadOptions(columns=(column,)))
        (among,) = store.read(queue.topic, 1)
    assert alone.schema == pa.schema([pa.field(column, COLUMNS[column])])
    assert alone[column].equals(among[column])


def test_columns_come_in_the_order_asked_for_and_may_be_none(golden: Golden) -> None:
    with Store.open(golden("live") / "store") as store:
        (batch,) = store.read("LiveTopic", 0, options=ReadOptions(columns=("body", "topic")))
        (empty,) = store.read("LiveTopic", 0, options=ReadOptions(columns=()))
    assert batch.schema.names == ["body", "topic"]
    assert empty.num_rows == batch.num_rows > 0


def test_compressed_bodies_as_they_were_and_as_they_are_stored(golden: Golden) -> None:
    reports = {
        (r.topic, r.queue_id, r.queue_offset): r
        for r in load_records(golden("flags"))
        if r.topic == "Compressed"
    }
    assert len({r.sys_flag for r in reports.values()}) == 4
    for decompress in (True, False):
        options = ReadOptions(columns=(*_IDENTITY, "body"), decompress=decompress)
        with Store.open(golden("flags") / "store") as store:
            rows = [r for r in read(store, options) if r["topic"] == "Compressed"]
        assert len(rows) == len(reports)
        for row in rows:
            report = reports[queue_key(row)]
            assert row["body"] == (report.body_uncompressed if decompress else report.body)


def test_a_body_as_text_has_no_invalid_bytes(golden: Golden) -> None:
    bodies = {queue_key(r): r["body"] for r in expected_rows(golden("basic"))}
    options = ReadOptions(columns=(*_IDENTITY, "body"), body_as_text=True)
    with Store.open(golden("basic") / "store") as store:
        for batch in store.read("TopicTest", 0, options=options):
            batch.validate(full=True)
            assert batch.schema.field("body").type == pa.string()
            for row in batch.to_pylist():
                assert row["body"] == bodies[queue_key(row)].decode("utf-8", "replace")


def test_batches_are_as_large_as_asked_for(tmp_path: Path) -> None:
    path = build_store(tmp_path / "store", Traffic(messages=5_000, body_size=(0, 3_000)))
    with Store.open(path) as store:
        few = list(store.read("orders", 0, options=ReadOptions(batch_rows=700)))
        small = list(store.read("orders", 0, options=ReadOptions(batch_bytes=100_000)))
    assert [b.num_rows for b in few] == [700] * 7 + [100]
    assert sum(b.num_rows for b in small) == 5_000
    assert all(sum(b["storeSize"].to_pylist()) <= 100_000 for b in small)


def test_splits_keep_their_limits(tmp_path: Path) -> None:
    traffic = Traffic(messages=9_000, topics={"a": 3, "b": 1}, body_size=500)
    path = build_store(tmp_path / "store", traffic, segment_size=1 << 20)
    with Store.open(path) as store:
        ranges = whole(store)
        by_count = plan(store, ranges, PlanLimits(max_records=400), "queue")
        by_bytes = plan(store, ranges, PlanLimits(max_bytes=300_000), "queue")
        by_number = plan(store, ranges, PlanLimits(min_partitions=50), "queue")
        along = plan(store, ranges, PlanLimits(max_bytes=300_000), "commitlog")
        for splits in (by_count, by_bytes, by_number, along):
            batches = [b for s in splits for b in read_split(store, s, ReadOptions(_IDENTITY))]
            rows = [queue_key(r) for b in batches for r in b.to_pylist()]
            assert len(rows) == len(set(rows)) == 9_000
        sizes = [sum(b.num_rows for b in read_split(store, s, ReadOptions())) for s in by_count]
        assert max(sizes) <= 400
        assert len(by_number) >= 50
        for split in by_bytes + along:
            batches = list(read_split(store, split, ReadOptions(("storeSize",))))
            assert sum(sum(b["storeSize"].to_pylist()) for b in batches) <= 330_000
        with pytest.raises(OptionError, match="maxRecordsPerPartition"):
            plan(store, ranges, PlanLimits(max_records=400), "commitlog")


@pytest.mark.parametrize(
    ("mebibytes", "splits"), [(0, 1), (7, 1), (8, 2), (17, 4), (128, 4), (129, 8), (4096, 128)]
)
def test_splits_come_in_multiples_that_are_worth_a_task(mebibytes: int, splits: int) -> None:
    limits = PlanLimits(max_bytes=32 << 20, multiple=4)
    assert limits.splits_of(mebibytes << 20) == splits
    assert replace(limits, min_partitions=9).splits_of(mebibytes << 20) == max(9, splits)
    assert replace(limits, multiple=1).splits_of(mebibytes << 20) == max(1, -(-mebibytes // 32))


def test_auto_goes_along_the_log_for_much_of_it_and_by_queue_for_little(tmp_path: Path) -> None:
    traffic = Traffic(messages=4_000, topics={"most": 8, "least": 1}, shuffled=True)
    path = build_store(tmp_path / "store", traffic)
    with Store.open(path) as store:
        kinds = {type(s).__name__ for s in plan(store, whole(store))}
        assert kinds == {"LogSplit"}
        least = [r for r in whole(store) if r.topic == "least"]
        assert {type(s).__name__ for s in plan(store, least)} == {"QueueSplit"}


def test_unknown_columns_topics_and_queues_are_named_with_those_there_are(golden: Golden) -> None:
    with pytest.raises(OptionError, match=r"Unknown columns: nope.*brokerName, topic"):
        ReadOptions(columns=("nope",))
    with pytest.raises(OptionError, match=r"tags must be a set .*parse_tags"):
        ReadOptions(tags="TagA || TagB")  # type: ignore[arg-type]  # what a user may try
    with pytest.raises(OptionError, match=r"keys must be a set .*parse_keys"):
        ReadOptions(keys="a b")  # type: ignore[arg-type]  # as above
    with pytest.raises(OptionError, match="FAILFAST or DROPMALFORMED"):
        ReadOptions(mode="PERMISSIVE")  # type: ignore[arg-type]  # what a user may well write
    with Store.open(golden("live") / "store") as store:
        with pytest.raises(TopicNotFoundError, match=r"It has: .*LiveTopic") as caught:
            store.queue("LiveTopics", 0)
        assert "%RETRY%" not in str(caught.value)
        with pytest.raises(TopicNotFoundError, match=r"Its queues are 0, 1, 2, 3"):
            store.queue("LiveTopic", 4)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/broker-a/store", "broker-a"),
        ("/data/broker-a/store/", "broker-a"),
        ("/data/rocketmq", "rocketmq"),
        ("/store", "store"),
        ("s3://bucket/broker-b/store", "broker-b"),
        ("s3://bucket/archive-7", "archive-7"),
        ("zip://store::/backup/broker-c.zip", "broker-c.zip"),
    ],
)
def test_a_store_is_called_after_its_folder(path: str, name: str) -> None:
    assert default_broker_name(path) == name


def test_a_batch_holds_little_more_than_it_should_when_it_is_unpacked(tmp_path: Path) -> None:
    body = bytes(range(256)) * 400
    packed = zlib.compress(body)
    with StoreBuilder(tmp_path / "store", segment_size=1 << 20) as builder:
        builder.append(
            pa.RecordBatch.from_pydict(
                {
                    "topic": ["T"] * 20,
                    "body": pa.array([packed, b"plain"] * 10, pa.binary()),
                    "sysFlag": pa.array([0x301, 0] * 10, pa.int32()),
                }
            )
        )
    with Store.open(tmp_path / "store") as store:
        batches = list(store.scan(options=ReadOptions(("body",), batch_bytes=250_000)))
    assert [b for batch in batches for b in batch["body"].to_pylist()] == [body, b"plain"] * 10
    assert len(batches) > 1
    assert all(batch.nbytes < 250_000 + 2 * len(body) for batch in batches)
