"""StoreWriter: what is stored, what is refused and why, and how it is flushed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreWriter
from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RefusedError,
    StoreLockedError,
    StoreWriteError,
    TopicNotFoundError,
    UnsupportedStoreError,
)
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import record_columns
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes.serving import block_of
from tests.support.stores.storing import Clock, as_killed, config, in_queues, messages, until
from tests.support.waiting import NewThreads

WAIT = 30.0


def block(bodies: list[bytes], **others: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    batch = record_columns(messages(bodies, **others), 1, "127.0.0.1:10911")
    return np.array(encode_records(batch).data)


# ---- what is stored ------------------------------------------------------------------------------


def test_messages_are_in_their_queues_in_order(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        first = store.put_batch(messages([b"a", b"b", b"c"], queue_id=[0, 1, 0]))
        second = store.put_batch(messages([b"d"], queue_id=0))
        assert (first.status, first.rows) == (PutStatus.PUT_OK, 3)
        assert first.queue_offset.tolist() == [0, 0, 1]
        assert second.queue_offset.tolist() == [2]
        assert second.physical_offset.tolist() == [first.end_offset]
        store.flush()
        assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"c", b"d"], ("T", 1): [b"b"]}
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"c", b"d"], ("T", 1): [b"b"]}


def test_a_message_has_the_id_that_its_put_gave(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config(brokerIP1="10.1.2.3", listenPort=9)) as store:
        ids = store.put_batch(messages([b"a", b"b"])).msg_ids()
    assert ids[0] == "0A0102030000000900000000" + "00000000"
    with Store.open(tmp_path / "s") as reader:
        rows = [row for batch in reader.read("T", 0) for row in batch.to_pylist()]
        assert [row["msgId"] for row in rows] == ids


def test_a_store_goes_on_where_it_was(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        end = store.put_batch(messages([b"a"] * 7, queue_id=[0, 1] * 3 + [0])).end_offset
    # other sizes are for new stores only
    with StoreWriter.open(tmp_path / "s", config(mappedFileSizeCommitLog=1 << 20)) as store:
        result = store.put_batch(messages([b"b" * 3000, b"c" * 3000], queue_id=[0, 1]))
        assert result.queue_offset.tolist() == [4, 3]
        assert result.physical_offset[0] in (end, 4096)
    assert {p.stat().st_size for p in (tmp_path / "s" / "commitlog").iterdir()} == {4096}
    assert {p.stat().st_size for p in (tmp_path / "s").glob("consumequeue/*/*/*")} == {200}


def test_a_store_that_rocketmq_wrote_goes_on(golden: Callable[[str], Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(golden("live") / "store", tmp_path / "s"))
    before = in_queues(path)
    topics = (path / "config" / "topics.json").read_text()
    with StoreWriter.open(path, config()) as store:
        assert store.recovery.clean
        assert store.topics.get("LiveOrder") is not None
        result = store.put_batch(messages([b"new"] * 3, topic="LiveOrder", queue_id=[1, 1, 3]))
        assert result.ok, result.remark
    after = in_queues(path)
    for route in ("LiveOrder", 1), ("LiveOrder", 3):
        assert after.pop(route) == before.pop(route) + [b"new"] * (2 if route[1] == 1 else 1)
    assert after == before
    assert (path / "config" / "topics.json").read_text() == topics


def test_a_store_passes_verification(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, config()) as store:
        for number in range(60):
            keyed = [f"UNIQ_KEY\1{number}.{n}\2KEYS\1k{n}".encode() for n in range(5)]
            bodies = [b"x" * (number * 7 % 500)] * 5
            batch = messages(bodies, queue_id=[0, 1, 2, 3, 0], properties=keyed)
            assert store.put_batch(batch).ok
    with Store.open(path) as reader:
        assert verify(reader).problems == ()


def test_nothing_is_left_of_a_store_that_is_open(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, config()) as store:
        assert store.put_batch(messages([b"a" * 3000])).ok
        assert (path / "abort").exists()
        assert (path / "commitlog" / GUARD_NAME).exists()
    assert sorted(p.name for p in path.iterdir()) == [
        "checkpoint", "commitlog", "config", "consumequeue", "index", "lock", "rmqstore",
    ]  # fmt: skip
    assert [p.name for p in (path / "commitlog").iterdir()] == ["0" * 20]
    assert not (path / "rmqstore" / "ready").exists()


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.put_batch(messages([b"a"] * 100))
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_the_checkpoint_knows_what_is_flushed(tmp_path: Path) -> None:
    clock = Clock()
    with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:
        store.put_batch(messages([b"a"]))
        clock.now += 1000
        store.put_batch(messages([b"b"]))
        store.flush()
        held = Checkpoint.decode((tmp_path / "s" / "checkpoint").read_bytes())
        assert held.physic_msg_timestamp == held.logics_msg_timestamp == clock.now


def test_a_clock_that_goes_back_moves_no_time_back(tmp_path: Path) -> None:
    clock = Clock()
    start = clock.now
    times = []
    for step in (0, -3_600_000, 5, -1):
        clock.now += step
        with StoreWriter.open(tmp_path / "s", config(), clock=clock) as store:
            store.put_batch(messages([b"a", b"b"]))
            clock.now -= 10
            store.put_batch(messages([b"c"]))
            clock.now += 10
    with Store.open(tmp_path / "s") as reader:
        for batch in reader.read("T", 0):
            times += [int(t.timestamp() * 1000) for t in batch["storeTimestamp"].to_pylist()]
    assert times == [start] * 12


def test_data_that_cannot_be_changed_is_copied(tmp_path: Path) -> None:
    data = block([b"a", b"b"])
    data.flags.writeable = False
    before = data.tobytes()
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put(data).rows == 2
    assert data.tobytes() == before


def test_an_empty_block_is_nothing(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        result = store.put(np.empty(0, np.uint8))
        assert (result.status, result.rows, result.end_offset) == (PutStatus.PUT_OK, 0, 0)


def test_async_flush_flushes_a_single_message_within_its_interval(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config(flushIntervalCommitLog=20)) as store:
        result = store.put_batch(messages([b"a"]))
        assert result.ok
        until(lambda: store.stats()["commitLogFlushedOffset"] == store.published_end)


@pytest.mark.parametrize("disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_many_threads_put_at_once(disk_type: str, tmp_path: Path) -> None:
    threads, puts = 8, 25
    results: list[list[PutResult]] = [[] for _ in range(threads)]

    def run(number: int, store: StoreWriter) -> None:
        for turn in range(puts):
            bodies = [f"{number}:{turn}:{row}".encode() for row in range(1 + turn % 3)]
            results[number].append(store.put_batch(messages(bodies, queue_id=turn % 2)))

    # A disk that others keep busy is not what this is about.
    patient = config(flushDiskType=disk_type, syncFlushTimeout=120_000)
    with StoreWriter.open(tmp_path / "s", patient) as store:
        workers = [threading.Thread(target=run, args=(n, store)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for _ in range(5):
            store.flush()
        for worker in workers:
            worker.join()
    held = in_queues(tmp_path / "s")
    assert sum(map(len, held.values())) == sum(1 + turn % 3 for turn in range(puts)) * threads
    for number, of_thread in enumerate(results):
        assert [result.status for result in of_thread] == [PutStatus.PUT_OK] * puts
        for turn, result in enumerate(of_thread):
            found = [held["T", turn % 2][offset] for offset in result.queue_offset.tolist()]
            assert found == [f"{number}:{turn}:{row}".encode() for row in range(1 + turn % 3)]


@pytest.mark.fault
def test_closing_while_others_put_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    store = StoreWriter.open(tmp_path / "s", config())

    def run() -> None:
        for turn in range(1_000_000):
            body = str(turn).encode()
            result = store.put_batch(messages([body]))
            if not result.ok:
                assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
                return
            acknowledged.append(body)

    worker = threading.Thread(target=run)
    worker.start()
    until(lambda: len(acknowledged) > 100)
    store.close()
    worker.join(WAIT)
    assert in_queues(tmp_path / "s") == {("T", 0): acknowledged}
    with StoreWriter.open(tmp_path / "s", config()) as again:
        assert again.recovery.clean


# ---- what is refused -----------------------------------------------------------------------------

REFUSALS: list[tuple[dict[str, Any], dict[str, Any], PutStatus, str]] = [
    ({}, {"topic": "a b"}, PutStatus.MESSAGE_ILLEGAL, "not a topic name"),
    ({}, {"topic": "../x"}, PutStatus.MESSAGE_ILLEGAL, "not a topic name"),
    ({}, {"topic": "主题"}, PutStatus.MESSAGE_ILLEGAL, "not a topic name"),
    ({}, {"topic": "SCHEDULE_TOPIC_XXXX"}, PutStatus.MESSAGE_ILLEGAL, "is a system topic"),
    ({}, {"topic": "rmq_sys_RMQSTORE_COMMIT"}, PutStatus.MESSAGE_ILLEGAL, "is a system topic"),
    ({}, {"queue_id": 8}, PutStatus.MESSAGE_ILLEGAL, "no queue 8 to write to: it has 8"),
    ({}, {"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL, "queueId is negative"),
    ({}, {"sysFlag": [4]}, PutStatus.MESSAGE_ILLEGAL, "sysFlag"),
    ({}, {"body": b"x" * 5000}, PutStatus.MESSAGE_ILLEGAL, "has room for 4088"),
    ({"maxMessageSize": 10}, {"body": b"x" * 11}, PutStatus.MESSAGE_ILLEGAL, "maxMessageSize"),
    ({"autoCreateTopicEnable": "false"}, {}, PutStatus.TOPIC_NOT_EXIST, "create-topic"),
    ({"maxTopics": 1}, {"topic": "U"}, PutStatus.MESSAGE_ILLEGAL, "maxTopics is 1"),
    ({"brokerRole": "SLAVE"}, {}, PutStatus.SERVICE_NOT_AVAILABLE, "slave"),
    ({"diskMaxUsedSpaceRatio": 1}, {}, PutStatus.SERVICE_NOT_AVAILABLE, "diskMaxUsedSpaceRatio"),
]


@pytest.mark.parametrize(
    ("settings", "message", "status", "words"), REFUSALS, ids=lambda value: str(value)[:40]
)
def test_what_a_broker_refuses_is_refused(
    settings: dict[str, Any], message: dict[str, Any], status: PutStatus, words: str, tmp_path: Path
) -> None:
    body = message.pop("body", b"x") if "body" in message else b"x"
    others = {k: v for k, v in message.items() if k != "body"}
    with StoreWriter.open(tmp_path / "s", config(**settings)) as store:
        if "maxTopics" in settings:
            store.create_topic("T")
        result = store.put_batch(messages([body], **others))
        assert (result.status, result.rows) == (status, 0)
        assert words in result.remark
        assert store.flush()["maxOffset"] == 0
    assert in_queues(tmp_path / "s") == {}
    assert not (tmp_path / "x").exists()


def test_properties_that_are_too_long_are_refused(tmp_path: Path) -> None:
    good = block([b"x"], properties=[b"k\1" + b"v" * 32_765])
    start = len(good) - 32_767 - 2
    bad = np.concatenate([good, np.frombuffer(b"v", np.uint8)])
    bad[start : start + 2] = np.frombuffer((32_768).to_bytes(2, "big"), np.uint8)
    bad[:4] = np.frombuffer(len(bad).to_bytes(4, "big"), np.uint8)
    with StoreWriter.open(tmp_path / "s", config(mappedFileSizeCommitLog=1 << 20)) as store:
        assert store.put(good).status is PutStatus.PUT_OK
        assert store.put(bad).status is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_a_block_that_is_too_large_is_refused_unseen(tmp_path: Path) -> None:
    settings = config(maxMessageSize=1000, maxBlockBytes=1 << 20, maxBlockRows=10)
    with StoreWriter.open(tmp_path / "s", settings) as store:
        large = store.put(np.zeros((1 << 20) + 1, np.uint8))
        assert (large.status, "maxBlockBytes" in large.remark) == (PutStatus.MESSAGE_ILLEGAL, True)
        many = store.put(block([b""] * 11))
        assert (many.status, many.rows) == (PutStatus.MESSAGE_ILLEGAL, 0)
        assert store.put(block([b""] * 10)).ok


def test_one_bad_record_refuses_its_block(tmp_path: Path) -> None:
    data = block([b"a", b"b", b"c"])
    data[-1] ^= 1
    data[8] ^= 1  # the first one's bodyCRC
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put(data).status is PutStatus.MESSAGE_ILLEGAL
        assert "T" not in store.topics
        assert store.flush()["maxOffset"] == 0


def test_a_topic_that_may_not_be_written_to(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.create_topic("T", perm=4)
        assert store.put_batch(messages([b"x"])).status is PutStatus.NO_PERMISSION
        store.update_topic("T", perm=6)
        assert store.put_batch(messages([b"x"])).ok


def test_a_batch_without_what_it_needs_is_refused(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        for columns, words in (
            ({"topic": ["T"]}, "no column body"),
            ({"topic": ["T"], "body": [b""], "tag": ["x"]}, "has the unknown column tag"),
            ({"topic": [None], "body": [b""]}, "topic has 1 nulls"),
            ({"topic": ["T"], "body": [b""], "queueId": [1 << 40]}, "queueId is not of type int32"),
        ):
            with pytest.raises(OptionError, match=words):
                store.put_batch(pa.RecordBatch.from_pydict(columns))


# ---- topics --------------------------------------------------------------------------------------


def test_a_topic_is_made_by_its_first_message(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config(defaultTopicQueueNums=3)) as store:
        assert store.put_batch(messages([b"x"], queue_id=2)).ok
        assert store.put_batch(messages([b"x"], queue_id=3)).status is PutStatus.MESSAGE_ILLEGAL
    with Store.open(tmp_path / "s") as reader:
        (topic,) = reader.topics()
        assert (topic.name, topic.write_queue_nums, topic.perm) == ("T", 3, 6)


def test_the_topics_of_a_block_are_made_in_one_writing(tmp_path: Path) -> None:
    """Each writing of topics.json waits for the disk: one by one, 2,000 would take minutes."""
    names = [f"T{number}" for number in range(20)]
    with StoreWriter.open(tmp_path / "s", config()) as store:
        for topics, status in (
            ([*names, "a b"], PutStatus.MESSAGE_ILLEGAL),
            (names, PutStatus.PUT_OK),
        ):
            batch = pa.RecordBatch.from_pydict({"topic": topics, "body": [b"x"] * len(topics)})
            assert store.put_batch(batch).status is status
        assert [topic.name for topic in store.topics] == names
    written = json.loads((tmp_path / "s" / "config" / "topics.json").read_text())
    assert written["dataVersion"]["counter"] == 1


def test_topics_of_the_store_are_left_alone(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        for name in ("rmq_sys_RMQSTORE_COMMIT", "SCHEDULE_TOPIC_XXXX"):
            for touch in (store.create_topic, store.update_topic, store.delete_topic):
                with pytest.raises(OptionError, match=f"Topic {name!r} is a system topic"):
                    touch(name)
        store.create_topic("%RETRY%group", write_queue_nums=1)


def test_a_topic_that_topics_json_has_lost_keeps_its_queues(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.create_topic("T", write_queue_nums=20)
        assert store.put_batch(messages([b"x"], queue_id=17)).ok
    shutil.rmtree(tmp_path / "s" / "config")
    copy = Path(shutil.copytree(tmp_path / "s", tmp_path / "copy"))
    with StoreWriter.open(copy, config()) as store:
        assert store.create_topic("T").write_queue_nums == 18
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"y"], queue_id=17)).queue_offset.tolist() == [1]
        assert store.put_batch(messages([b"z"], queue_id=18)).status is PutStatus.MESSAGE_ILLEGAL


def test_a_topic_that_is_deleted_begins_anew(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.put_batch(messages([b"old"] * 20))
        store.put_batch(messages([b"other"], topic="U"))
        store.delete_topic("T")
        with pytest.raises(TopicNotFoundError):
            store.delete_topic("T")
        store.flush()
        assert in_queues(tmp_path / "s") == {("U", 0): [b"other"]}
        assert store.put_batch(messages([b"new"])).queue_offset.tolist() == [0]
    assert in_queues(tmp_path / "s") == {("T", 0): [b"new"], ("U", 0): [b"other"]}


# ---- whose store it is ---------------------------------------------------------------------------


def test_promise_7_a_second_writer_is_refused(tmp_path: Path) -> None:
    with (
        StoreWriter.open(tmp_path / "s", config()),
        pytest.raises(StoreLockedError, match="open for writing"),
    ):
        StoreWriter.open(tmp_path / "s", config())
    StoreWriter.open(tmp_path / "s", config()).close()


def test_a_folder_with_other_things_is_no_place_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(OptionError, match=r"holds other files \(thesis\.txt\)"):
        StoreWriter.open(tmp_path, config())
    with pytest.raises(OptionError, match="is not a folder"):
        StoreWriter.open(tmp_path / "thesis.txt", config())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["dledger", "multipath"])
def test_stores_that_cannot_be_written_are_left_as_they_are(
    name: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(golden(name) / "store", tmp_path / "s"))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(UnsupportedStoreError, match="can be read but not written"):
        StoreWriter.open(path, config())
    assert {p: p.read_bytes() for p in before} == before
    assert not (path / "abort").exists()


def test_a_log_in_other_folders_is_refused(tmp_path: Path) -> None:
    for given in (f"{tmp_path}/a,{tmp_path}/b", f"{tmp_path}/elsewhere"):
        with pytest.raises(UnsupportedStoreError, match="storePathCommitLog"):
            StoreWriter.open(tmp_path / "s", config(storePathCommitLog=given))
    own = config(storePathCommitLog=tmp_path / "s" / "commitlog")
    StoreWriter.open(tmp_path / "s", own).close()


def test_a_store_that_cannot_be_opened_gives_its_lock_back(tmp_path: Path) -> None:
    StoreWriter.open(tmp_path / "s", config()).close()
    topics = tmp_path / "s" / "config" / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text("{")
    threads = NewThreads()
    with pytest.raises(CorruptStoreError, match=r"topics\.json"):
        StoreWriter.open(tmp_path / "s", config())
    assert not threads.named("")
    topics.unlink()
    StoreWriter.open(tmp_path / "s", config()).close()


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = StoreWriter.open(tmp_path / "s", config())
    store.close()
    store.close()
    assert store.put_batch(messages([b"x"])).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.state == "CLOSED"
    with pytest.raises(RefusedError, match="closed"):
        store.create_topic("T")
    with pytest.raises(RefusedError, match="closed"):
        store.delete_topic("T")
    assert not (tmp_path / "s" / "config").exists()  # another process may have the store by now


# ---- flushing, and disks that fail ---------------------------------------------------------------


class Fdatasync:
    """`os.fdatasync` that can be made to wait or fail; counts its calls.

    Only files of the CommitLog are meant: the others of a store are flushed as ever.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.error = 0
        self.released = threading.Event()
        self.released.set()
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, descriptor: int) -> None:
        if "/commitlog/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return self._real(descriptor)
        self.calls += 1
        assert self.released.wait(WAIT)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self._real(descriptor)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.released.clear()
        try:
            yield
        finally:
            self.released.set()


def test_promise_1_a_put_is_answered_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Fdatasync(monkeypatch)
    settings = config(flushDiskType="SYNC_FLUSH")
    with StoreWriter.open(tmp_path / "s", settings) as store:
        result = store.put_batch(messages([b"x"]))
        assert result.ok
        assert disk.calls >= 1
        assert store.stats()["commitLogFlushedOffset"] == result.end_offset


def test_those_who_wait_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Fdatasync(monkeypatch)
    settings = config(flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=1 << 20)
    results: list[PutResult] = []
    with StoreWriter.open(tmp_path / "s", settings) as store:
        store.put_batch(messages([b"x"]))
        before = disk.calls
        with disk.held():
            threads = [
                threading.Thread(
                    target=lambda: results.append(store.put_batch(messages([b"y"]))), daemon=True
                )
                for _ in range(16)
            ]
            for thread in threads:
                thread.start()
            until(lambda: store.stats()["putMessages"] == 17)
        for thread in threads:
            thread.join(WAIT)
        assert [result.status for result in results] == [PutStatus.PUT_OK] * 16
        # one that was under way, and one for all who came meanwhile
        assert disk.calls - before <= 3


def test_blocks_put_at_once_share_a_flush_and_stop_at_the_first_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Fdatasync(monkeypatch)
    settings = config(
        flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=1 << 20, osPageCacheBusyTimeOutMills=1
    )

    def blocks() -> list[U1]:
        bodies = [[b"0"], [b"1"], [b"bad"], [b"2"], [b"3", b"4"], [b"5"]]
        found = [block_of(some, "T") for some in bodies]
        found[2][8] ^= 1  # bodyCRC
        return found

    store = StoreWriter.open(tmp_path / "s", settings)
    store.create_topic("T")
    results = store.put_all(blocks())
    assert [result.status.value for result in results] == [
        *("PUT_OK", "PUT_OK", "MESSAGE_ILLEGAL", "PUT_OK", "PUT_OK", "PUT_OK"),
    ]
    assert [o for result in results for o in result.queue_offset.tolist()] == list(range(6))
    assert disk.calls == 1
    with store._appender.appending():
        busy = store.put_all(blocks())
    assert [result.status for result in busy] == [PutStatus.OS_PAGECACHE_BUSY]
    disk.error = errno.EIO
    lost = store.put_all(blocks())
    assert [(result.status.value, result.is_open) for result in lost] == [
        ("MESSAGE_ILLEGAL", False) if number == 2 else ("SERVICE_NOT_AVAILABLE", True)
        for number in range(6)
    ]
    store.close()


def test_a_flush_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Fdatasync(monkeypatch)
    settings = config(flushDiskType="SYNC_FLUSH", syncFlushTimeout=20)
    with StoreWriter.open(tmp_path / "s", settings) as store:
        with disk.held():
            result = store.put_batch(messages([b"x"]))
            assert (result.status, result.rows) == (PutStatus.FLUSH_DISK_TIMEOUT, 1)
            assert result.status.is_stored
        store.flush()
        assert in_queues(tmp_path / "s") == {("T", 0): [b"x"]}


@pytest.mark.fault
def test_promise_5_a_failed_flush_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Fdatasync(monkeypatch)
    store = StoreWriter.open(tmp_path / "s", config(flushDiskType="SYNC_FLUSH"))
    assert store.put_batch(messages([b"good"])).ok
    store.flush()
    held = Checkpoint.decode((tmp_path / "s" / "checkpoint").read_bytes())
    disk.error = errno.EIO
    lost = store.put_batch(messages([b"lost?"]))
    assert (lost.status, "Input/output error" in lost.remark) == (
        PutStatus.SERVICE_NOT_AVAILABLE, True,
    )  # fmt: skip
    assert lost.is_open
    disk.error = 0  # the second try would "succeed"
    refused = store.put_batch(messages([b"no"]))
    assert (refused.status, refused.is_open) == (PutStatus.SERVICE_NOT_AVAILABLE, False)
    assert store.state == "FAILED"
    with pytest.raises(RefusedError):
        store.create_topic("U")
    with pytest.raises(StoreWriteError):
        store.flush()
    until(lambda: in_queues(tmp_path / "s")["T", 0][0] == b"good")  # reads work
    store.close()
    left = Checkpoint.decode((tmp_path / "s" / "checkpoint").read_bytes())
    assert left.physic_msg_timestamp == held.physic_msg_timestamp
    assert (tmp_path / "s" / "abort").exists()
    with StoreWriter.open(tmp_path / "s", config()) as again:
        assert not again.recovery.clean
        assert again.put_batch(messages([b"new"])).ok
    assert in_queues(tmp_path / "s")["T", 0][0] == b"good"


@pytest.mark.fault
def test_promise_5_async_flush_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Fdatasync(monkeypatch)
    settings = config(flushIntervalCommitLog=1)
    with StoreWriter.open(tmp_path / "s", settings) as store:
        disk.error = errno.EIO
        assert store.put_batch(messages([b"x"])).ok
        until(lambda: store.state == "FAILED")
        assert store.put_batch(messages([b"x"])).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_log_that_is_held_for_long_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, entered, released = os.pwritev, threading.Event(), threading.Event()

    def slow(descriptor: int, buffers: Any, offset: int) -> int:
        entered.set()
        assert released.wait(WAIT)
        return real(descriptor, buffers, offset)

    with StoreWriter.open(tmp_path / "s", config(osPageCacheBusyTimeOutMills=20)) as store:
        monkeypatch.setattr(os, "pwritev", slow)
        results: list[PutResult] = []
        thread = threading.Thread(target=lambda: results.append(store.put_batch(messages([b"a"]))))
        thread.start()
        assert entered.wait(WAIT)
        busy = store.put_batch(messages([b"b"]))
        released.set()
        thread.join(WAIT)
        assert (busy.status, busy.rows) == (PutStatus.OS_PAGECACHE_BUSY, 0)
        assert busy.status.is_transient
        assert results[0].ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a"]}


@pytest.mark.fault
def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(descriptor: int, buffers: Any, offset: int) -> int:
        return real(descriptor, [memoryview(buffers[0])[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    bodies = [bytes([n]) * 700 for n in range(30)]
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(bodies)).ok
    assert in_queues(tmp_path / "s") == {("T", 0): bodies}


@pytest.mark.fault
@pytest.mark.parametrize("after", [0, 50, 4096])
def test_promise_5_a_failed_write_stops_the_writer(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok
        fail_after(monkeypatch, after, errno.EIO)
        failed = store.put_batch(messages([b"b" * 2000] * 4))
        assert (failed.status, failed.rows) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
        monkeypatch.undo()
        assert store.put_batch(messages([b"c"])).status is PutStatus.SERVICE_NOT_AVAILABLE
        until(lambda: in_queues(tmp_path / "s") == {("T", 0): [b"a"]})
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a"]}
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"d"])).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"d"]}


def fail_after(monkeypatch: pytest.MonkeyPatch, count: int, code: int) -> None:
    """Let writes into the log fail once so many bytes of records are written; zeros may follow."""
    real, left = os.pwritev, count

    def failing(descriptor: int, buffers: Any, offset: int) -> int:
        nonlocal left
        data = b"".join(bytes(buffer) for buffer in buffers)
        if not any(data):
            return real(descriptor, [data], offset)
        if left == 0:
            raise OSError(code, os.strerror(code))
        data, left = data[:left], max(0, left - len(data))
        return real(descriptor, [data], offset)

    monkeypatch.setattr(os, "pwritev", failing)


@pytest.mark.fault
@pytest.mark.parametrize("after", [0, 50, 2101, 4096])
def test_promise_6_what_a_full_disk_cut_short_never_comes_back(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"b" * 2000] * 4
    store = StoreWriter.open(tmp_path / "s", config())
    assert store.put_batch(messages([b"a"])).ok
    fail_after(monkeypatch, after, errno.ENOSPC)
    refused = store.put_batch(messages(bodies))
    assert (refused.status, refused.rows) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    monkeypatch.undo()
    assert store.state == "RUNNING"
    # of the same length as the first that was cut short: what stood behind it would follow
    assert store.put_batch(messages([b"c" * 2000])).ok
    store.flush()
    copy = as_killed(tmp_path / "s", tmp_path / "copy")
    store.close()
    expected = {("T", 0): [b"a", b"c" * 2000]}
    assert in_queues(tmp_path / "s") == expected
    StoreWriter.open(copy, config()).close()  # as after a kill
    assert in_queues(copy) == expected


@pytest.mark.fault
def test_promise_6_a_segment_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"a"])).ok

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
        large = messages([b"b" * 3990])
        for _ in range(3):
            result = store.put_batch(large)
            assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert store.put_batch(messages([b"small"])).ok  # there is room for it
        monkeypatch.undo()
        assert store.put_batch(large).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"small", b"b" * 3990]}
    assert caplog.text.count("The store refuses messages until") == 1
    assert caplog.text.count("The next segment was created: the store accepts messages again") == 1


@pytest.mark.fault
def test_promise_6_queues_without_room_hold_the_log_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if "/consumequeue/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    with StoreWriter.open(tmp_path / "s", config()) as store:
        monkeypatch.setattr(os, "pwrite", full)
        assert store.put_batch(messages([b"a"])).ok  # it is in the log
        until(lambda: store._workers.dispatcher.stalled is not None)
        refused = store.put_batch(messages([b"b"]))
        assert (refused.status, refused.rows) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
        assert "no space for queues and index" in refused.remark
        with pytest.raises(StoreWriteError, match="No space left"):
            store.flush()
        assert store.state == "DISK_FULL"
        monkeypatch.undo()
        until(lambda: store.state == "RUNNING")
        assert store.put_batch(messages([b"c"])).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a", b"c"]}


@pytest.mark.fault
def test_a_store_that_is_closed_without_room_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if "/consumequeue/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    store = StoreWriter.open(tmp_path / "s", config())
    monkeypatch.setattr(os, "pwrite", full)
    assert store.put_batch(messages([b"a"])).ok
    with pytest.raises(StoreWriteError, match="No space left"):
        store.close()
    monkeypatch.undo()
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert not store.recovery.clean
        assert store.recovery.redispatched == 1
    assert in_queues(tmp_path / "s") == {("T", 0): [b"a"]}


@pytest.mark.parametrize("linked", ["rmqstore", "rmqstore/staging", "rmqstore/cut"])
def test_what_is_removed_at_a_start_is_not_found_through_a_link(
    tmp_path: Path, linked: str
) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.put_batch(messages([b"a"]))
    others = tmp_path / "others"
    for place in ("a" * 32, "staging/" + "b" * 32, "cut/c.partial"):
        (others / place).mkdir(parents=True)
    folder = tmp_path / "s" / linked
    shutil.rmtree(folder, ignore_errors=True)
    folder.symlink_to(others)
    with pytest.raises(OptionError, match=f"{linked} is a link to {others}"):
        StoreWriter.open(tmp_path / "s", config())
    assert len(list(others.rglob("*"))) == 5
    folder.unlink()
    with StoreWriter.open(tmp_path / "s", config()):
        assert in_queues(tmp_path / "s") == {("T", 0): [b"a"]}


def test_a_folder_among_the_files_of_a_queue_is_named(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.put_batch(messages([b"a"]))
    folder = tmp_path / "s" / "consumequeue" / "T" / "0" / f"{6_000_000:020}"
    folder.mkdir()
    with pytest.raises(OptionError, match=f"{folder} is a folder .* Move it out of"):
        StoreWriter.open(tmp_path / "s", config())


def test_the_disks_use_is_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ratio = 0.95
    monkeypatch.setattr("rmqstore_spark.engine.admission.disk_used_ratio", lambda _: ratio)
    with StoreWriter.open(tmp_path / "s", config(diskMaxUsedSpaceRatio=90)) as store:
        assert store.state == "DISK_FULL"
        assert store.put_batch(messages([b"x"])).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "The disk is 95% full, and diskMaxUsedSpaceRatio is 90" in caplog.text
        ratio = 0.85
        with caplog.at_level("INFO"):
            until(lambda: store.state == "RUNNING")
            until(lambda: "The disk is 85% full, within" in caplog.text)
        assert store.put_batch(messages([b"x"])).ok


def test_stats_are_what_happened(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        result = store.put_batch(messages([b"x"] * 5, queue_id=[0, 1, 0, 1, 0]))
        store.flush()
        stats = store.stats()
        assert stats["putMessages"] == 5
        assert stats["putBytes"] == stats["commitLogMaxOffset"] == result.end_offset
        assert stats["commitLogFlushedOffset"] == result.end_offset
        assert stats["dispatchBehindBytes"] == 0
        assert stats["queues"] == {"T": {"0": [0, 3], "1": [0, 2]}}
        assert (stats["state"], stats["putLatency"]["count"]) == ("RUNNING", 1)
        assert 0 < stats["diskUsedRatio"] < 1
