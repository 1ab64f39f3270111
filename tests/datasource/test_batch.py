"""Batch queries: what each option does to the rows. Through a JVM: `test_spark_batch.py`."""

from __future__ import annotations

import json
import logging
import pickle
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from rmqstore_spark.errors import (
    CorruptRecordError,
    DataLossError,
    OptionError,
    StoreNotFoundError,
    TopicNotFoundError,
    UnsupportedStoreError,
)
from tests.datasource.driving import (
    Golden,
    GrowingStore,
    batch_rows,
    keys_of,
    plan_batch,
    read_all,
    rows_in,
)
from tests.support.stores.expected import backed_rows, expected_rows, log_rows, queue_key
from tests.support.stores.golden import GOLDEN_NAMES, load_queues
from tests.support.stores.records import commitlog_folders
from tests.support.stores.storebuilder import Traffic, build_store


def store_options(folder: Path) -> dict[str, Any]:
    """Options for a golden store whose log lies in folders of its own."""
    folders = commitlog_folders(folder)
    return {"storePathCommitLog": ",".join(map(str, folders))} if len(folders) > 1 else {}


def of_broker(rows: list[dict[str, Any]], broker: str) -> list[dict[str, Any]]:
    """Rows without the broker's name, which all of them must have, by queue."""
    assert {row.pop("brokerName") for row in rows} <= {broker}
    return sorted(rows, key=queue_key)


@pytest.mark.parametrize("plan_by", ["queue", "commitlog", "auto"])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_store(name: str, plan_by: str, golden: Golden) -> None:
    folder = golden(name)
    options = {"includeSystemTopics": True, "planBy": plan_by, **store_options(folder)}
    if name == "unclean-nocq":
        if plan_by == "queue":
            with pytest.raises(UnsupportedStoreError, match="no ConsumeQueues"):
                batch_rows(folder / "store", **options)
            return
        expected = sorted(log_rows(folder), key=queue_key)
    else:
        expected = backed_rows(folder)
    assert of_broker(batch_rows(folder / "store", **options), name) == expected


# ---- stores -------------------------------------------------------------------------------------


def test_several_stores_by_comma_glob_and_list(golden: Golden, tmp_path: Path) -> None:
    for name in ("tiny", "batch"):
        shutil.copytree(golden(name) / "store", tmp_path / name / "store")
    (tmp_path / "note.txt").touch()
    a, b = tmp_path / "tiny" / "store", tmp_path / "batch" / "store"
    everything = batch_rows(f"{a},{b}")
    assert {row["brokerName"] for row in everything} == {"tiny", "batch"}
    assert len(everything) == len(batch_rows(a)) + len(batch_rows(b))
    glob = batch_rows(tmp_path / "*" / "store")
    assert sorted(map(str, glob)) == sorted(map(str, everything))
    listed = batch_rows(json.dumps([str(a), str(b)]))
    assert listed == everything


def test_a_path_with_a_comma_and_one_with_magic_characters(golden: Golden, tmp_path: Path) -> None:
    odd = tmp_path / "a,b [1]*"
    shutil.copytree(golden("tiny") / "store", odd)
    assert len(batch_rows(json.dumps([str(odd)]))) == len(batch_rows(golden("tiny") / "store"))


def test_broker_names(golden: Golden) -> None:
    tiny, batch = golden("tiny") / "store", golden("batch") / "store"
    named = batch_rows(f"{tiny},{batch}", brokerNames="x,y")
    assert {row["brokerName"] for row in named} == {"x", "y"}
    with pytest.raises(OptionError, match="both called 'tiny'"):
        batch_rows(f"{tiny},{tiny}")
    with pytest.raises(OptionError, match="1 names for 2 stores"):
        batch_rows(f"{tiny},{batch}", brokerNames="x")


def test_commitlog_folders_of_several_stores(golden: Golden) -> None:
    multipath, tiny = golden("multipath"), golden("tiny")
    folders = {"multipath": [str(folder) for folder in commitlog_folders(multipath)]}
    paths = f"{multipath / 'store'},{tiny / 'store'}"
    rows = batch_rows(paths, storePathCommitLog=json.dumps(folders))
    assert len(rows) == len(batch_rows(multipath / "store", **store_options(multipath))) + len(
        batch_rows(tiny / "store")
    )
    with pytest.raises(OptionError, match="folders of one store, but the query reads 2"):
        batch_rows(paths, storePathCommitLog="/x")
    with pytest.raises(OptionError, match="unknown broker 'other'"):
        batch_rows(paths, storePathCommitLog='{"other":"/x"}')


def test_an_archive_over_fsspec(golden: Golden, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", golden("basic"), "store")
    for url in (f"zip://store::file://{packed}", f"zip://store::file:{packed}"):
        rows = batch_rows(url, includeSystemTopics=True, brokerNames="z")
        assert of_broker(rows, "z") == expected_rows(golden("basic"))


def test_a_path_without_a_store(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(StoreNotFoundError, match="commitlog"):
        batch_rows(tmp_path)
    with pytest.raises(StoreNotFoundError, match="No folder matches"):
        batch_rows(tmp_path / "*" / "store")
    # Each process has a memory of its own: the planner and the tasks would not see the store.
    with pytest.raises(OptionError, match="in the memory of one process"):
        batch_rows("memory://stores/a")


def test_a_store_that_the_tasks_cannot_see(golden: Golden, tmp_path: Path) -> None:
    shutil.copytree(golden("tiny") / "store", tmp_path / "store")
    reader, partitions = plan_batch(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFoundError, match="accessible to all executors") as caught:
        rows_in(read_all(reader, partitions))
    assert socket.gethostname() in str(caught.value)


# ---- topics and queues --------------------------------------------------------------------------


def topics_of(rows: list[dict[str, Any]]) -> set[str]:
    return {row["topic"] for row in rows}


def test_topics_by_default_are_all_but_system_ones(golden: Golden) -> None:
    store = golden("live") / "store"
    every = topics_of(expected_rows(golden("live")))
    system = {t for t in every if t.startswith(("%RETRY%", "%DLQ%", "RMQ_SYS", "SCHEDULE_TOPIC"))}
    assert system
    assert topics_of(batch_rows(store)) == every - system
    assert topics_of(batch_rows(store, includeSystemTopics=True)) == every
    # One that is named is read without being asked for a second time.
    retry = next(topic for topic in system if topic.startswith("%RETRY%"))
    assert topics_of(batch_rows(store, subscribe=f"LiveTopic,{retry}")) == {"LiveTopic", retry}
    assert topics_of(batch_rows(store, subscribePattern="LiveT.*")) == {
        topic for topic in every if topic.startswith("LiveT")
    }
    assert topics_of(batch_rows(store, subscribePattern=".*", includeSystemTopics=True)) == every


def test_assign(golden: Golden) -> None:
    rows = batch_rows(golden("basic") / "store", assign='{"TopicTest":[0,3],"orders_v2-EU":[1]}')
    queues = {(row["topic"], row["queueId"]) for row in rows}
    assert queues == {("TopicTest", 0), ("TopicTest", 3), ("orders_v2-EU", 1)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "TopicTest,Missing"}, r"'Missing' does not exist.*TopicTest"),
        ({"assign": '{"Missing":[0]}'}, "Topic 'Missing' does not exist"),
        ({"assign": '{"TopicTest":[0,9]}'}, r"no queue 9 .*Its queues: 0, 1, 2, 3"),
    ],
)
def test_what_does_not_exist_is_named(options: dict[str, Any], words: str, golden: Golden) -> None:
    with pytest.raises(TopicNotFoundError, match=words):
        batch_rows(golden("basic") / "store", **options)


def test_a_store_without_queues_is_chosen_from_all_the_same(golden: Golden) -> None:
    folder = golden("unclean-nocq")
    rows = log_rows(folder)
    store = folder / "store"
    wanted = [r for r in rows if r["topic"] == "TopicTest" and r["queueId"] in (0, 2)]
    assert wanted
    assert keys_of(batch_rows(store, assign='{"TopicTest":[0,2]}')) == keys_of(wanted)
    assert topics_of(batch_rows(store, subscribePattern="Topic.*")) == {"TopicTest"}
    only_body = StructType([StructField("body", BinaryType())])
    bodies = batch_rows(store, only_body, subscribe="TopicTest")
    assert [r["body"] for r in bodies] == [r["body"] for r in rows if r["topic"] == "TopicTest"]
    keyed = next(r for r in rows if r["keys"] and r["topic"] == "TopicTest")
    with_key = batch_rows(store, keys=keyed["keys"][0], includeSystemTopics=True)
    assert keys_of(with_key) == keys_of(r for r in rows if keyed["keys"][0] in (r["keys"] or []))
    for option, value in [
        ("startingOffsets", '{"TopicTest":{"0":5}}'),
        ("endingTimestamp", "5"),
        ("planBy", "queue"),
    ]:
        with pytest.raises(UnsupportedStoreError, match=option):
            batch_rows(store, None, **{option: value})


# ---- where to start and end ---------------------------------------------------------------------

TWO: dict[str, Any] = {"assign": '{"TopicTest":[0,1]}'}


def offsets_of(rows: list[dict[str, Any]], queue_id: int = 0) -> list[int]:
    return [row["queueOffset"] for row in rows if row["queueId"] == queue_id]


def test_offsets_by_queue(golden: Golden) -> None:
    store = golden("basic") / "store"
    rows = batch_rows(
        store,
        startingOffsets='{"TopicTest":{"0":23,"1":-2}}',
        endingOffsets='{"TopicTest":{"basic":{"0":40},"1":-1}}',
        **TWO,
    )
    assert offsets_of(rows, 0) == list(range(23, 40))
    assert offsets_of(rows, 1) == list(range(167))
    assert batch_rows(store, endingOffsets='{"TopicTest":{"0":0,"1":0}}', **TWO) == []


def test_offsets_with_brokers(golden: Golden) -> None:
    paths = f"{golden('ha-master') / 'store'},{golden('ha-slave') / 'store'}"
    topic = min(topics_of(batch_rows(golden("ha-master") / "store")))
    starts = {topic: {"ha-master": {"0": 10}, "ha-slave": {"0": 20}}}
    rows = batch_rows(paths, assign=json.dumps({topic: [0]}), startingOffsets=json.dumps(starts))
    firsts = {
        broker: min(r["queueOffset"] for r in rows if r["brokerName"] == broker)
        for broker in ("ha-master", "ha-slave")
    }
    assert firsts == {"ha-master": 10, "ha-slave": 20}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"TopicTest":{"0":5}}'}, "does not list TopicTest/1 of basic"),
        ({"startingOffsets": '{"TopicTest":{"0":5,"1":5,"2":5}}'}, "lists TopicTest/2, which"),
        ({"startingOffsets": '{"TopicTest":{"0":5,"1":168}}'}, "is 168 for TopicTest/1 .*at 167"),
        (
            {
                "startingOffsets": '{"TopicTest":{"0":50,"1":5}}',
                "endingOffsets": '{"TopicTest":{"0":40,"1":50}}',
            },
            "TopicTest/0 of basic would start after its end: startingOffsets gives 50",
        ),
        ({"startingOffsets": "group:nobody"}, "unknown consumer group 'nobody'"),
        ({"startingTimestamp": "9999999999999"}, "has no message stored at or after"),
    ],
)
def test_positions_that_do_not_fit(options: dict[str, Any], words: str, golden: Golden) -> None:
    with pytest.raises(OptionError, match=words):
        batch_rows(golden("basic") / "store", **TWO, **options)


def test_an_end_past_the_queues_end(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    ending = '{"TopicTest":{"0":400,"1":5}}'
    with pytest.raises(DataLossError, match="endingOffsets is 400 for TopicTest/0"):
        batch_rows(golden("basic") / "store", endingOffsets=ending, **TWO)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        rows = batch_rows(
            golden("basic") / "store", endingOffsets=ending, failOnDataLoss=False, **TWO
        )
    assert offsets_of(rows) == list(range(167))
    assert "endingOffsets is 400" in caplog.text


def stored(row: dict[str, Any]) -> int:
    return round(row["storeTimestamp"].timestamp() * 1000)


def test_settings_that_cannot_be_read_keep_no_message_back(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(golden("live") / "store", tmp_path / "store")
    settings = tmp_path / "store" / "config" / "topics.json"
    settings.write_text("{")
    settings.with_suffix(".json.bak").unlink(missing_ok=True)
    expected = batch_rows(golden("live") / "store", brokerNames="b")
    assert batch_rows(tmp_path / "store", brokerNames="b") == expected
    assert str(settings) in caplog.text
    with pytest.raises(TopicNotFoundError, match="LiveBatch, LiveDelay"):
        batch_rows(tmp_path / "store", subscribe="TBW102")


def test_times(golden: Golden) -> None:
    store, every = golden("basic") / "store", expected_rows(golden("basic"))
    every = [row for row in every if row["topic"] == "TopicTest" and row["queueId"] < 2]
    times = sorted(map(stored, every))
    early, late = times[len(times) // 4], times[len(times) // 2]
    rows = batch_rows(store, startingTimestamp=early, endingTimestamp=late, **TWO)
    assert sorted(keys_of(rows)) == sorted(
        keys_of(row for row in every if early <= stored(row) < late)
    )
    by_queue = batch_rows(
        store,
        startingOffsetsByTimestamp=f'{{"TopicTest":{{"0":{late},"1":{early}}}}}',
        endingOffsetsByTimestamp=f'{{"TopicTest":{{"0":"9999-01-01T00:00:00Z","1":{late}}}}}',
        startingOffsets='{"TopicTest":{"0":1,"1":1}}',  # of less weight
        **TWO,
    )
    assert sorted(keys_of(by_queue)) == sorted(
        keys_of(
            row
            for row in every
            if (row["queueId"] == 0 and stored(row) >= late)
            or (row["queueId"] == 1 and early <= stored(row) < late)
        )
    )
    assert (
        batch_rows(
            store,
            startingTimestamp="9999-01-01",
            startingOffsetsByTimestampStrategy="latest",
            **TWO,
        )
        == []
    )


def test_a_groups_own_progress(golden: Golden) -> None:
    store = golden("live") / "store"
    # fastjson leaves the quotes of numbers out.
    text = (store / "config" / "consumerOffset.json").read_text()
    table = json.loads(re.sub(r"([{,])\s*([0-9]+):", r'\1"\2":', text))["offsetTable"]
    progress = {int(queue): offset for queue, offset in table["LiveDelay@cg_live"].items()}
    assert sum(progress.values()) > 0
    rows = batch_rows(store, subscribe="LiveDelay", startingOffsets="group:cg_live")
    before = batch_rows(store, subscribe="LiveDelay", endingOffsets="group:cg_live")
    every = [row for row in expected_rows(golden("live")) if row["topic"] == "LiveDelay"]
    for queue_id, done in progress.items():
        offsets = offsets_of(every, queue_id)
        assert offsets_of(before, queue_id) == [offset for offset in offsets if offset < done]
        assert offsets_of(rows, queue_id) == [offset for offset in offsets if offset >= done]
    # A queue that the group never read starts at its first message, and ends there.
    queues: dict[str, Any] = {"subscribe": "LiveBatch"}
    assert len(batch_rows(store, startingOffsets="group:cg_live", **queues)) > 0
    assert batch_rows(store, endingOffsets="group:cg_live", **queues) == []


# ---- expired messages ---------------------------------------------------------------------------


def test_offsets_that_have_expired(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    store = golden("trimmed") / "store"
    queues = load_queues(golden("trimmed")).queues
    (topic, queue_id), report = next(
        (key, report)
        for key, report in queues.items()
        if report.min_offset > 2 and not key[0].startswith("%") and report.readable
    )
    options: dict[str, Any] = {
        "assign": json.dumps({topic: [queue_id]}),
        "startingOffsets": json.dumps({topic: {str(queue_id): report.min_offset - 2}}),
    }
    with pytest.raises(DataLossError, match=f"^2 messages of {topic}/{queue_id} of trimmed have"):
        batch_rows(store, **options)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        rows = batch_rows(store, failOnDataLoss=False, **options)
    assert [r["queueOffset"] for r in rows] == list(range(report.min_offset, report.max_offset))
    assert "2 messages" in caplog.text
    # Earliest is what there is, with no loss; an end before it leaves nothing.
    ending = json.dumps({topic: {str(queue_id): report.min_offset - 2}})
    assert batch_rows(store, assign=options["assign"], endingOffsets=ending) == []


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_messages_that_expire_between_plan_and_read(plan_by: str, tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", segment_size=16 << 10)
    growing.put(400)
    failing = plan_batch(growing.path, planBy=plan_by)
    skipping = plan_batch(growing.path, planBy=plan_by, failOnDataLoss=False)
    segments = sorted((growing.path / "commitlog").iterdir())
    kept = int(segments[2].name)
    for segment in segments[:2]:
        segment.unlink()
    with pytest.raises(DataLossError):
        rows_in(read_all(*failing))
    left = [key for key, physical in growing.physical.items() if physical >= kept]
    assert sorted(keys_of(rows_in(read_all(*skipping)))) == sorted(left)


# ---- partitions ---------------------------------------------------------------------------------


def test_long_ranges_are_split(golden: Golden) -> None:
    store = golden("basic") / "store"
    whole = sorted(map(str, batch_rows(store)))

    def planned(**options: Any) -> list[Any]:
        reader, partitions = plan_batch(store, **options)
        assert sorted(map(str, rows_in(read_all(reader, partitions)))) == whole
        return [split for partition in partitions for split in partition.splits]

    assert len(planned(planBy="queue")) == 8
    assert len(planned(planBy="commitlog")) == 1
    assert len(planned(planBy="queue", minPartitions=30)) >= 30
    assert len(planned(planBy="commitlog", minPartitions=5)) >= 5
    by_rows = planned(maxRecordsPerPartition=50)
    assert max(split.range.count for split in by_rows) <= 50
    assert len(planned(planBy="queue", maxBytesPerPartition="64k")) > 20
    assert max(s.size for s in planned(planBy="commitlog", maxBytesPerPartition="64k")) <= 1 << 16


@pytest.mark.parametrize("plan_by", ["auto", "queue", "commitlog"])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_more_partitions_than_rows_leave_none_empty(
    tmp_path: Path, plan_by: str, rows: int
) -> None:
    """Also where most of the log is of other topics, and its records are of very unequal sizes."""
    store = GrowingStore(tmp_path / "b", {"orders": 3})
    store.put(rows // 2, {"orders": 3}, body_size=(1, 9000))
    store.put(300, {"others": 2})
    store.put(rows - rows // 2, {"orders": 3})
    for wanted in (5, rows, 10 * rows):
        reader, partitions = plan_batch(
            store.path, subscribe="orders", planBy=plan_by, minPartitions=wanted
        )
        each = [len(rows_in(read_all(reader, [part]))) for part in partitions]
        assert sum(each) == rows
        assert min(each) > 0
        assert min(wanted, rows) <= len(each) <= rows


def test_partitions_are_shared_out_over_stores(golden: Golden) -> None:
    paths = f"{golden('basic') / 'store'},{golden('tiny') / 'store'}"
    _, partitions = plan_batch(paths, planBy="commitlog", minPartitions=20)
    brokers = [partition.store.broker_name for partition in partitions]
    assert 18 <= len(brokers) <= 24
    assert brokers.count("basic") > 10 * brokers.count("tiny") > 0


def test_a_plan_is_a_snapshot(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.put(100)
    reader, partitions = plan_batch(growing.path)
    growing.put(100)
    assert len(rows_in(read_all(reader, partitions))) == 100
    assert len(rows_in(read_all(reader, partitions))) == 100
    assert len(batch_rows(growing.path)) == 200


def test_partitions_of_many_queues_are_small(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store", {"wide": 300})
    growing.put(600)
    _, partitions = plan_batch(growing.path, planBy="queue")
    assert len(partitions) == 300
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 1000


# ---- filters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
def test_tags(plan_by: str, golden: Golden) -> None:
    rows = batch_rows(golden("basic") / "store", tags="TagA || TagC", planBy=plan_by)
    wanted = [
        row
        for row in expected_rows(golden("basic"))
        if row["tags"] in ("TagA", "TagC") and not row["topic"].startswith("%")
    ]
    assert sorted(keys_of(rows)) == sorted(keys_of(wanted))
    assert wanted


def test_a_tag_that_holds_operators_is_named_in_a_list(tmp_path: Path) -> None:
    traffic = Traffic(messages=40, tags=("a && b", "a", "b"))
    path = build_store(tmp_path / "store", traffic)
    rows = batch_rows(path, tags='["a && b"]')
    assert rows
    assert {row["tags"] for row in rows} == {"a && b"}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("Topic", r"'Topic' matches no topic in .* Existing topics: .*TopicTest"),
        ("%RETRY%.*", r"matches system topics: set includeSystemTopics=true"),
    ],
)
def test_a_pattern_that_matches_no_topic(pattern: str, words: str, golden: Golden) -> None:
    with pytest.raises(TopicNotFoundError, match=words) as caught:
        batch_rows(golden("basic") / "store", subscribePattern=pattern)
    told = str(caught.value).partition("Existing topics: ")[2]
    assert "TopicTest" in told
    assert "SCHEDULE_TOPIC_XXXX" not in told
    assert "%RETRY%" not in told


def test_keys(golden: Golden) -> None:
    every = [
        r for r in expected_rows(golden("basic")) if not r["topic"].startswith("%") and r["keys"]
    ]
    some_key, uniq = every[3]["keys"][0], every[50]["uniqKey"]
    rows = batch_rows(golden("basic") / "store", keys=f"{some_key} {uniq}")
    wanted = [r for r in every if some_key in r["keys"] or r["uniqKey"] == uniq]
    assert sorted(keys_of(rows)) == sorted(keys_of(wanted))
    tagged = next(r for r in every if r["tags"])
    both = batch_rows(golden("basic") / "store", keys=tagged["keys"][0], tags=tagged["tags"])
    assert sorted(keys_of(both)) == sorted(
        keys_of(r for r in every if tagged["keys"][0] in r["keys"] and r["tags"] == tagged["tags"])
    )


# ---- columns ------------------------------------------------------------------------------------


def test_a_projection_decodes_only_what_is_asked_for(golden: Golden) -> None:
    schema = StructType(
        [
            StructField("BODY", StringType(), nullable=False),
            StructField("queueid", IntegerType()),
        ]
    )
    reader, partitions = plan_batch(golden("basic") / "store", schema)
    batches = list(read_all(reader, partitions))
    assert batches[0].schema.names == ["BODY", "queueid"]
    assert not batches[0].schema.field("BODY").nullable
    texts = sorted(row["BODY"] for row in rows_in(batches))
    assert texts == sorted(
        row["body"].decode("utf-8", "replace")
        for row in expected_rows(golden("basic"))
        if not row["topic"].startswith("%")
    )


def test_decompress(golden: Golden) -> None:
    plain = batch_rows(golden("flags") / "store")
    stored_bodies = batch_rows(golden("flags") / "store", decompress=False)
    packed = [k for k, row in enumerate(plain) if row["sysFlag"] & 1]
    assert packed
    assert all(plain[k]["body"] != stored_bodies[k]["body"] for k in packed)


def test_damage(golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("basic") / "store", store)
    victim = next(r for r in expected_rows(golden("basic")) if len(r["body"]) > 200)
    segment = store / "commitlog" / f"{victim['physicalOffset'] // 262144 * 262144:020}"
    data = bytearray(segment.read_bytes())
    data[victim["physicalOffset"] % 262144 + 88 + 100] ^= 0xFF
    segment.write_bytes(data)
    count = len(expected_rows(golden("basic")))
    options: dict[str, Any] = {"includeSystemTopics": True}
    with pytest.raises(CorruptRecordError, match=r"bodyCRC.*mode=DROPMALFORMED"):
        batch_rows(store, **options)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        assert len(batch_rows(store, mode="DROPMALFORMED", **options)) == count - 1
    assert "left out 1 record" in caplog.text
    assert len(batch_rows(store, checkCrc=False, **options)) == count
    # The CRC is of the body: who does not ask for it reads on.
    topics = StructType([StructField("topic", StringType())])
    assert len(batch_rows(store, topics, **options)) == count


def test_a_topic_that_a_log_without_queues_does_not_name(golden: Golden) -> None:
    path = str(golden("unclean-nocq") / "store")
    with pytest.raises(TopicNotFoundError, match=r"'TopicTset' does not exist.*TopicTest"):
        batch_rows(path, subscribe="TopicTset")
    with pytest.raises(TopicNotFoundError, match=r"Topic 'Nope' does not exist"):
        batch_rows(path, assign='{"Nope":[77]}')
    both = f"{path},{golden('live') / 'store'}"
    with pytest.raises(TopicNotFoundError, match=r"'LiveTopik' does not exist.*LiveTopic"):
        batch_rows(both, subscribe="LiveTopik")
    assert batch_rows(both, subscribe="LiveTopic,TopicTest")


@pytest.mark.parametrize(
    "option",
    [{"startingTimestamp": "0"}, {"maxRecordsPerPartition": "10"}, {"endingTimestamp": "9"}],
)
def test_what_needs_queues_is_to_be_left_out_where_there_are_none(
    golden: Golden, option: dict[str, Any]
) -> None:
    (name,) = option
    with pytest.raises(UnsupportedStoreError, match=f"Remove {name} to read"):
        batch_rows(golden("unclean-nocq") / "store", **option)
