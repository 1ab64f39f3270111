"""Delayed messages: how they wait, when and how they are delivered, and what is not delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.delay.delivery import Waiting
from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import delay_progress
from rmqstore_spark.verify import verify
from tests.support.messages.batches import QUERY, stage_id
from tests.support.messages.blocks import encoded
from tests.support.processes.delaying import delayed, delayed_config, delivered, rows_of
from tests.support.stores.golden import RecordReport, load_entries, load_records
from tests.support.stores.storing import Clock, config, in_queues, messages, until
from tests.support.waiting import NewThreads

WAITS = "SCHEDULE_TOPIC_XXXX"
HOUR = 3_600_000
SEGMENT = 4096
EXPIRING = {
    "mappedFileSizeCommitLog": SEGMENT, "cleanResourceInterval": 100,
    "deleteCommitLogFilesInterval": 0, "flushDelayOffsetInterval": 100,
}  # fmt: skip


def asked_for(record: RecordReport) -> dict[str, Any]:
    """The message that a client sent, of which RocketMQ stored this record."""
    given = {k: v for k, v in record.properties.items() if not k.startswith("REAL_")}
    joined = "\x02".join(f"{name}\x01{value}" for name, value in given.items())
    return {
        "topic": record.properties["REAL_TOPIC"],
        "queueId": int(record.properties["REAL_QID"]),
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": record.born_host,
        "body": record.body,
        "properties": joined.encode(),
    }


def entries_in(store: Path, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """Size and tagsCode of each entry in a queue's files."""
    folder = store / "consumequeue" / topic / str(queue_id)
    data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    entries = CONSUME_QUEUE.decode(data)
    return [(int(e["size"]), int(e["tagsCode"])) for e in entries[entries["size"] > 0]]


def put_segments(store: StoreWriter, clock: Clock) -> None:
    """Fill two segments, each with a message that waits for an hour."""
    for body in (b"first", b"second"):
        assert store.put_batch(delayed([body], 3)).ok
        assert store.put_batch(messages([b"x" * 3700], topic="Other")).ok
        clock.now += 1000
    store.flush()


def test_void_ones_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"0", b"1", b"2", b"3"], 3)).ok
        until(lambda: store.stats()["delayedWaiting"].get("3") == 4)
        store.flush()
        with open(path / "consumequeue" / WAITS / "2" / f"{0:020}", "r+b") as file:
            for offset in (0, 2):
                file.seek(20 * offset + 12)
                file.write((2**63 - 1).to_bytes(8, "big"))
        clock.now += HOUR
        delivered(store, 2)
        until(lambda: store.stats()["delayedWaiting"].get("3", 0) == 0)
    assert [row["body"] for row in rows_of(path, "T")] == [b"1", b"3"]
    assert "were not delivered" not in caplog.text


def progress(path: Path) -> dict[int, int]:
    with Store.open(path) as store:
        return {level.level: level.offset for level in delay_progress(store)}


def problems(path: Path) -> list[str]:
    with Store.open(path) as store:
        return [str(one) for one in verify(store, delay_levels="1s 5s 1h").problems]


# ---- as RocketMQ stores and delivers them --------------------------------------------------------


@pytest.mark.usefixtures("each_kernel")
def test_they_wait_and_are_delivered_as_by_a_broker(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, path, clock = golden("delayed"), tmp_path / "s", Clock()
    waiting = [record for record in load_records(folder) if record.topic == WAITS]
    settings = config(mappedFileSizeCommitLog=1 << 18, listenPort=10911)
    with StoreWriter.open(path, settings, clock=clock) as store:
        for record in waiting:
            clock.now = record.store_timestamp
            row = {name: pa.array([value]) for name, value in asked_for(record).items()}
            row["queueId"] = row["queueId"].cast(pa.int32())
            assert store.put_batch(pa.RecordBatch.from_pydict(row)).ok
        clock.now = waiting[-1].store_timestamp + 2 * HOUR
        delivered(store, len(waiting))
        assert store.stats()["delayedWaiting"] == {str(level): 0 for level in range(1, 19)}

    rows = {(row["queueId"], row["queueOffset"]): row for row in rows_of(path, WAITS)}
    assert len(rows) == len(waiting)
    for record in waiting:
        row = rows[record.queue_id, record.queue_offset]
        assert dict(row["properties"]) == record.properties
        assert (row["body"], row["storeSize"]) == (record.body, record.store_size)
    for (topic, queue_id), listed in load_entries(folder).items():
        if topic == WAITS:
            expected = [(entry.size, entry.tags_code) for entry in listed]
            assert entries_in(path, topic, queue_id) == expected

    copies = {row["uniqKey"]: row for topic in ("DelayA", "DelayB") for row in rows_of(path, topic)}
    assert len(copies) == len(waiting)
    theirs = [r for r in load_records(folder) if r.topic != WAITS and "DELAY" in r.properties]
    assert theirs
    for record in theirs:
        row = copies[record.properties["UNIQ_KEY"]]
        assert dict(row["properties"]) == record.properties
        assert (row["topic"], row["queueId"]) == (record.topic, record.queue_id)
        assert (row["body"], row["storeSize"]) == (record.body, record.store_size)
        assert (row["bornHost"], row["storeHost"]) == (record.born_host, record.store_host)
        assert (row["flag"], row["sysFlag"]) == (record.flag, record.sys_flag)
    with Store.open(path) as reader:
        assert verify(reader).problems == ()


def test_a_brokers_store_goes_on_where_the_broker_was(
    copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    path, records = copy("delayed") / "store", load_records(golden("delayed"))
    theirs = sum(progress(path).values())
    assert theirs
    waiting = sum(record.topic == WAITS for record in records)
    clock = Clock(max(record.store_timestamp for record in records) + 2 * HOUR)
    with StoreWriter.open(path, clock=clock) as store:
        delivered(store, waiting - theirs)
    keys = [
        row["uniqKey"] for topic in ("DelayA", "DelayB") for row in rows_of(path, topic)
        if dict(row["properties"]).get("DELAY")
    ]  # fmt: skip
    assert len(keys) == len(set(keys)) == waiting


# ---- when ----------------------------------------------------------------------------------------


def test_each_is_delivered_when_it_is_due_and_once(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        batch = delayed([b"a", b"b", b"c", b"d"], [1, 0, 3, 99], queue_id=[0, 1, 2, 3])
        assert store.put_batch(batch).queue_offset.tolist() == [0, 0, 0, 1]
        clock.now += 1000
        delivered(store, 1)
        assert in_queues(path)["T", 0] == [b"a"]
        assert store.stats()["delayedWaiting"] == {"1": 0, "2": 0, "3": 2}
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        clock.now += HOUR - 1001
        assert store.put_batch(delayed([b"e"], 1)).ok
        clock.now += 1000
        delivered(store, 1)  # and it found nothing at the level of an hour
        clock.now += 1
        delivered(store, 3)
    found = in_queues(path)
    assert [found["T", n] for n in range(4)] == [[b"a", b"e"], [b"b"], [b"c"], [b"d"]]
    assert progress(path) == {1: 2, 2: 0, 3: 2}
    assert problems(path) == []


def test_a_clock_that_goes_back_holds_nothing_up(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"before", b"far"], [1, 3])).ok
        clock.now -= 10 * HOUR
        assert store.put_batch(delayed([b"after"], 1)).ok
        delivered(store, 2)  # after a second of another clock
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"later"], 1)).ok
        delivered(store, 1)
        assert store.stats()["delayedWaiting"]["3"] == 1
        clock.now += 11 * HOUR
        delivered(store, 2)
    assert in_queues(path)["T", 0] == [b"before", b"after", b"later", b"far"]


def test_a_message_has_waited_long_enough_whatever_the_clock_says() -> None:
    waiting = Waiting(10.0)
    waiting.note(5, 0.0)
    waiting.note(5, 1.0)
    waiting.note(8, 2.0)
    assert [waiting.ripe(now) for now in (9.9, 10.0, 11.9, 12.0)] == [0, 5, 5, 8]
    for second in range(100_000):
        waiting.note(10 + second, 20.0 + second / 100)
        waiting.ripe(20.0 + second / 100)
    assert len(waiting._notes) <= 1001, "waiting messages take no memory"
    assert 10 + 98_980 <= waiting.ripe(1019.99) <= 10 + 99_999


def test_a_slave_delivers_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"a"], 1)).ok
    clock.now += HOUR
    threads = NewThreads()
    with StoreWriter.open(path, delayed_config(brokerRole="SLAVE"), clock=clock):
        assert threads.named("rmqstore")
        assert not threads.named("rmqstore-delay")
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        delivered(store, 1)


# ---- what is put ---------------------------------------------------------------------------------


def test_a_batch_of_spark_can_hold_delayed_messages(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        store.create_topic("T", write_queue_nums=4)
        stage = store.batches.begin_stage(stage_id("one"))
        rows = delayed([b"a", b"b", b"c"], [3, 0, 1], queue_id=[1, 1, 0])
        stage.append(encoded(rows.append_column("bornTimestamp", pa.array([1, 2, 3]))))
        request = CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),))
        assert store.batches.commit(request).rows == 3
        assert store.batches.commit(request).status == "ALREADY_COMMITTED"
        clock.now += HOUR + 1
        delivered(store, 2)
    found = in_queues(path)
    assert (found["T", 1], found["T", 0]) == ([b"b", b"a"], [b"c"])
    assert problems(path) == []


def test_what_cannot_be_delayed_is_refused(tmp_path: Path) -> None:
    def properties(text: bytes) -> pa.RecordBatch:
        return messages([b"fine", b"x"], properties=pa.array([b"", text], pa.binary()))

    with StoreWriter.open(tmp_path / "s", delayed_config()) as store:
        for text in (b"DELAY\x01x", b"DELAY\x013.0", b"DELAY\x019999999999"):
            result = store.put_batch(properties(text))
            assert result.status is PutStatus.MESSAGE_ILLEGAL, text
            assert "record 1 of the block" in result.remark
            assert "DELAY is not a whole number" in result.remark
        long = store.put_batch(properties(b"DELAY\x011\x02a\x01" + b"x" * 32_740))
        assert long.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        direct = store.put_batch(messages([b"x"], topic=WAITS))
        assert direct.status is PutStatus.MESSAGE_ILLEGAL
        no_delay = store.put_batch(properties(b"DELAY\x01-3"))
        assert no_delay.ok
        store.flush()
        assert in_queues(tmp_path / "s") == {("T", 0): [b"fine", b"x"]}
    with pytest.raises(OptionError, match="messageDelayLevel must be delays such as 1s 5m"):
        config(messageDelayLevel="1s 5x")
    with pytest.raises(OptionError, match="messageDelayLevel must be 1 to 256 delays"):
        config(messageDelayLevel="99999d")


def test_a_message_that_was_delayed_before_gets_its_new_place(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    old = b"REAL_TOPIC\x01Old\x02a\x01b\x02DELAY\x01+007\x02REAL_QID\x019\x02"
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        batch = messages([b"x"], queue_id=3, properties=pa.array([old], pa.binary()))
        assert store.put_batch(batch).ok
        clock.now += HOUR
        delivered(store, 1)
    (row,) = rows_of(path, "T")
    wanted = {"a": "b", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert (dict(row["properties"]), row["queueId"]) == (wanted, 3)


# ---- what cannot be delivered, or is delivered in a hurry ----------------------------------------


def test_a_level_goes_on_behind_what_cannot_be_delivered(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        result = store.put_batch(delayed([b"good0", b"poison", b"good1"], 1))
        (segment,) = (path / "commitlog").glob("0*")
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(b"poison", int(result.physical_offset[1])))
            file.write(b"POISON")  # no longer what its CRC says
        clock.now += 1000
        delivered(store, 2)
        assert store.stats()["delayedSkipped"] == 1
        assert store.stats()["delayedWaiting"]["1"] == 0
    assert [row["body"] for row in rows_of(path, "T")] == [b"good0", b"good1"]


def test_a_segment_is_kept_while_messages_in_it_wait(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(**EXPIRING), clock=clock) as store:
        put_segments(store, clock)
        assert "has delayed messages that wait" in store.expirable(clock.now).remark
        store.expire(clock.now)
        until(lambda: not store.expirable(clock.now).is_working)
        assert "has delayed messages that wait" in store.stats()["expiryRemark"]
        assert store.flush()["minOffset"] == 0
        clock.now += HOUR
        delivered(store, 2)

        def is_expired() -> bool:
            store.expire(clock.now)  # again: an order ends if delivering is not noted yet
            return store.flush()["minOffset"] == SEGMENT

        until(is_expired)
    assert [row["body"] for row in rows_of(path, "T")] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("broker", "begin"), [("127.0.0.1:1", 0), ("", SEGMENT)], ids=["told", "not told"]
)
def test_a_slave_keeps_segments_if_it_is_told_what_was_delivered(
    tmp_path: Path, broker: str, begin: int
) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(**EXPIRING), clock=clock) as store:
        put_segments(store, clock)
    settings = {**EXPIRING, "brokerRole": "SLAVE", "haMasterRemotingAddress": broker}
    with StoreWriter.open(path, delayed_config(**settings), clock=clock) as store:
        assert ("has delayed messages" in store.expirable(clock.now).remark) == bool(broker)
        store.expire(clock.now)
        until(lambda: not store.expirable(clock.now).is_working)
        assert store.flush()["minOffset"] == begin


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [({"fileReservedTime": 10_000}, 0.9), ({"cleanFileForciblyEnable": False}, 1.01)],
    ids=["expiry is forced", "puts are refused"],
)
def test_messages_that_expire_on_a_full_disk_are_told_and_hold_up_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    ratio: float,
) -> None:
    path, clock, is_full = tmp_path / "s", Clock(), threading.Event()
    first = path / "commitlog" / f"{0:020}"
    monkeypatch.setattr(
        "rmqstore_spark.engine.admission.disk_used_ratio",
        lambda _: ratio if is_full.is_set() and first.exists() else 0.5,
    )
    with StoreWriter.open(path, delayed_config(**EXPIRING, **settings), clock=clock) as store:
        put_segments(store, clock)
        store.expire(clock.now)
        until(lambda: "has delayed messages that wait" in store.stats()["expiryRemark"])
        is_full.set()
        store.expire(clock.now)
        until(lambda: store.flush()["minOffset"] == SEGMENT)
        assert "although it or one before it has delayed messages that wait" in caplog.text
        clock.now += HOUR
        delivered(store, 1)
        assert store.stats()["delayedSkipped"] == 1
    assert [row["body"] for row in rows_of(path, "T")] == [b"second"]


def test_a_topic_that_was_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", Clock()
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"a"], 1, queue_id=2)).ok
        store.delete_topic("T")
        clock.now += 1000
        delivered(store, 1)
        topic = store.topics.get("T")
        assert topic is not None
        assert topic.write_queue_nums == 3
    assert in_queues(path)["T", 2] == [b"a"]


def test_a_full_disk_keeps_them_waiting(on_disk: Path) -> None:
    path, clock = on_disk / "s", Clock()
    full = delayed_config(diskMaxUsedSpaceRatio=1)
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        assert store.put_batch(delayed([b"a"], 1)).ok
    clock.now += 1000
    with StoreWriter.open(path, replace(full, disk_max_used_space_ratio=1), clock=clock) as store:
        assert store.state == "DISK_FULL"
        assert not store.stats()["delayedDelivered"]
    with StoreWriter.open(path, delayed_config(), clock=clock) as store:
        delivered(store, 1)


def test_many_are_delivered_in_their_order(tmp_path: Path) -> None:
    path, clock, count = tmp_path / "s", Clock(), 20_000
    large = delayed_config(mappedFileSizeCommitLog=1 << 24, mappedFileSizeConsumeQueue=600_000)
    with StoreWriter.open(path, large, clock=clock) as store:
        bodies = [b"%d" % number for number in range(count)]
        queues = (np.arange(count) % 4).astype(np.int32).tolist()
        assert store.put_batch(delayed(bodies, 2, queue_id=queues)).ok
        clock.now += 5000
        delivered(store, count)
        until(lambda: not store.stats()["delayedWaiting"]["2"])
    found = in_queues(path)
    assert [found["T", n] for n in range(4)] == [bodies[n::4] for n in range(4)]
