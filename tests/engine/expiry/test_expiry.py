"""Old segments are removed from a store, with what queues and index hold of them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.engine.tables.topics import TopicConfig
from rmqstore_spark.layout.index.format import IndexHeader
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.verify import verify
from tests.support.messages.batches import commit_batch, small_segments
from tests.support.stores.golden import load_meta, load_queues
from tests.support.stores.storing import Clock, config, in_queues, messages, until

Golden = Callable[[str], Path]

HOUR = 3_600_000
START = 1_700_000_000_000
EVERY_HOUR = ";".join(map(str, range(24)))
_STORE_TIMESTAMP = slice(56, 64)
"""In a record."""
QUICK = {"cleanResourceInterval": 100, "deleteCommitLogFilesInterval": 0}


def fill(store: StoreWriter, clock: Clock, hours: int, topic: str = "T") -> None:
    """Put a few messages every hour: about a segment in two hours."""
    for hour in range(hours):
        clock.now += HOUR
        bodies = [f"{topic}/{clock.now}/{k}".encode().ljust(400, b".") for k in range(4)]
        keys = [f"KEYS\1{topic}-{hour}-{k}".encode() for k in range(4)]
        assert store.put_batch(
            messages(bodies, topic=topic, queue_id=[0, 1, 0, 1], properties=keys)
        ).ok


def expire(store: StoreWriter, before: int) -> None:
    """Remove by hand, and wait until it is done."""
    store.flush()
    store.expire(before)
    until(lambda: not store.expirable(before).is_working)
    left = store.expirable(before)
    assert not left.segments, left


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit())


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


def test_old_segments_go_and_the_rest_is_as_before(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 60)
        store.flush()
        before = in_queues(path)
        found = store.expirable(START + 40 * HOUR).segments
        assert found
        assert [s.start for s in found] == list(range(0, found[-1].end, 4096))
        assert all(s.stored_until < START + 40 * HOUR for s in found)
        assert names(path / "commitlog")[0] == "0" * 20, "listing removes nothing"
        expire(store, START + 40 * HOUR)
        begin = found[-1].end
        stats = store.stats()
        assert stats["commitLogMinOffset"] == begin == int(names(path / "commitlog")[0])
        assert (stats["expiredSegments"], stats["expiredBytes"]) == (len(found), begin)
        after = in_queues(path)
        for route, bodies in before.items():
            kept = after[route]
            assert bodies[-len(kept) :] == kept
            assert list(stats["queues"]["T"][str(route[1])]) == [
                len(bodies) - len(kept),
                len(bodies),
            ]
        fill(store, clock, 3)
    with Store.open(path) as reader:
        assert verify(reader).ok
        assert reader.min_offset == begin
        for queue in reader.queues(["T"]):
            assert queue.physical_offset(queue.min_offset) >= begin
            first = queue.segments[0]
            assert queue.stated_offset(first.end // 20 - 1) >= begin, (
                "files of old entries are gone"
            )
            times = [
                r["storeTimestamp"] for b in reader.read("T", queue.queue_id) for r in b.to_pylist()
            ]
            assert len(times) == queue.max_offset - queue.min_offset


@pytest.mark.parametrize("damaged", [(), (0,), (3,), (4, 5, 6), (0, 1, 9, 10)])
def test_a_segment_without_a_readable_first_message_is_as_old_as_the_next(
    damaged: tuple[int, ...], tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 60)
        store.flush()
        files = [path / "commitlog" / name for name in names(path / "commitlog")]
        times: list[int | None] = [
            int.from_bytes(file.read_bytes()[_STORE_TIMESTAMP], "big") for file in files
        ]
        for number in damaged:
            with files[number].open("r+b") as file:
                file.write(bytes(8))
            times[number] = None
        untils = [next(filter(None, times[number + 1 :])) for number in range(len(files) - 1)]
        for hours in (0, 1, 7, 8, 20, 21, 55):
            old = [until for until in untils if until < START + hours * HOUR]
            found = store.expirable(START + hours * HOUR).segments
            assert [one.stored_until for one in found] == old
            assert [one.stored_from for one in found] == [
                -1 if time is None else time for time in times[: len(old)]
            ]


def test_index_files_go_when_all_their_keys_have(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 80)
        many = len(names(path / "index"))
        expire(store, START + 60 * HOUR)
        begin = store.stats()["commitLogMinOffset"]
        left = names(path / "index")
        assert 1 < len(left) < many
        for name in left[:-1]:
            header = IndexHeader.decode((path / "index" / name).read_bytes()[:40])
            assert header.end_phy_offset >= begin
    with Store.open(path) as reader:
        assert query_by_key(reader, "T", "T-75-1").num_rows == 1
        assert query_by_key(reader, "T", "T-1-1").num_rows == 0


def test_the_last_segment_stays(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 20)
        expire(store, clock.now + 1000 * HOUR)
        end = store.published_end
        assert names(path / "commitlog")[0] == f"{(end - 1) // 4096 * 4096:020}"


def test_a_queue_without_messages_goes_on_where_it_was(tmp_path: Path, clock: Clock) -> None:
    """As RocketMQ's EarlyOnly in the golden stores: file and offsets stay."""
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 5, "early")
        fill(store, clock, 30)
        expire(store, clock.now)
        assert store.stats()["queues"]["early"] == {"0": [10, 10], "1": [10, 10]}
        assert len(names(path / "consumequeue" / "early" / "0")) == 1
        fill(store, clock, 1, "early")
        store.flush()
        assert store.stats()["queues"]["early"]["0"] == [10, 12]
    with StoreWriter.open(path, config(), clock=clock) as store:
        assert store.stats()["queues"]["early"]["0"] == [10, 12]


def test_segments_expire_by_themselves_at_their_hour(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    rule = {
        "fileReservedTime": 24,
        "deleteWhen": EVERY_HOUR,
        "deletePhysicFilesBatchMax": 2,
        **QUICK,
    }
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 60)
    with StoreWriter.open(path, config(**rule), clock=clock) as store:
        limit = clock.now - 24 * HOUR + 1
        assert store.expirable(limit).segments
        until(lambda: not store.expirable(limit).segments)
        assert store.expirable(clock.now).segments, "younger ones stay"


def test_no_segment_expires_at_another_hour_or_while_the_disk_has_room(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 60)
    other = (time.localtime(clock.now / 1000).tm_hour + 12) % 24
    rule = {"fileReservedTime": 1, "deleteWhen": other, "diskSpaceCleanForciblyRatio": 1, **QUICK}
    with StoreWriter.open(path, config(**rule), clock=clock) as store:
        rounds = store._workers.expiry
        for _ in range(3):
            assert rounds._round(0)
        assert store.stats()["expiredSegments"] == 0


def test_a_full_disk_takes_young_segments_until_it_has_room(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 60)

    def used(_: str) -> float:
        return 0.799 + 0.01 * len(names(path / "commitlog"))

    monkeypatch.setattr("rmqstore_spark.engine.admission.disk_used_ratio", used)
    rule = {"fileReservedTime": 10_000, "diskMaxUsedSpaceRatio": 75, **QUICK}
    with StoreWriter.open(path, config(**rule), clock=clock) as store:
        assert store.state == "DISK_FULL"
        assert "diskSpaceWarningLevelRatio is 0.9" in store.put_batch(messages([b"x"])).remark
        until(lambda: len(names(path / "commitlog")) <= 5)
        until(lambda: store.state == "RUNNING")
        assert store.put_batch(messages([b"x"])).ok
        # No more than needed. The put may have made the next segment, which takes room, too.
        until(lambda: store._workers.expiry._round(0) and len(names(path / "commitlog")) == 5)


def test_what_is_not_in_the_queues_stays(tmp_path: Path, clock: Clock) -> None:
    """The dispatcher holds on to a block for which there is no room."""
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 20)
        store.flush()
        done = store.published_end
        held = threading.Event()
        release = threading.Event()
        append = store._store.queues.append

        def stuck(*args: Any) -> None:
            held.set()
            release.wait()
            append(*args)

        store._store.queues.append = stuck  # type: ignore[assignment,method-assign]
        with ThreadPoolExecutor(1) as putting:
            try:
                clock.now += HOUR
                put = putting.submit(store.put_batch, messages([b"x" * 3500]))
                assert held.wait(60)
                store._workers.flusher.flush()
                assert store.expirable(clock.now + HOUR).segments[-1].end < done
            finally:
                release.set()
            assert put.result().ok


def test_commits_stay_known_when_their_markers_expire(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", Clock(START)
    with StoreWriter.open(path, small_segments(), clock=clock) as store:
        for number in range(3):
            clock.now += HOUR
            assert commit_batch(store, number).status == "COMMITTED"
        clock.now += HOUR
        for _ in range(4):
            store.put_batch(messages([b"y" * 6000]))
        expire(store, clock.now + 1)
        assert store.stats()["queues"][MARKER_TOPIC]["0"][0] == 3
    (path / "abort").touch()
    with StoreWriter.open(path, small_segments(), clock=clock) as store:
        assert commit_batch(store, 2, attempt=1).status == "ALREADY_COMMITTED"
        assert commit_batch(store, 3).status == "COMMITTED"


def test_a_segment_that_a_client_reads_is_kept_for_a_while(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(
        path, config(redeleteHangedFileInterval=86_000_000), clock=clock
    ) as store:
        fill(store, clock, 30)
        store.flush()
        third = "commitlog/" + names(path / "commitlog")[2]
        with store.reading(third):
            store.expire(clock.now)
            until(lambda: "reads the segment" in store.stats()["expiryRemark"])
            until(lambda: store.stats()["commitLogMinOffset"] == 8192)
            assert (path / third).exists()
            assert store.expirable(clock.now).is_working
        until(lambda: not store.expirable(clock.now).is_working)
        assert not (path / third).exists()


def test_after_that_while_it_goes_and_the_client_reads_on(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(redeleteHangedFileInterval=0), clock=clock) as store:
        fill(store, clock, 30)
        store.flush()
        first = path / "commitlog" / ("0" * 20)
        with store.reading("commitlog/" + "0" * 20), first.open("rb") as file:
            expire(store, clock.now)
            assert not first.exists()
            assert len(file.read()) == 4096


def test_puts_go_on_while_a_hundred_segments_expire(tmp_path: Path, clock: Clock) -> None:
    """Expiry never takes the append lock: every put succeeds, also of a thread that never waits."""
    path = tmp_path / "store"
    settings = config(deletePhysicFilesBatchMax=100, deleteCommitLogFilesInterval=1)
    with StoreWriter.open(path, settings, clock=clock) as store:
        fill(store, clock, 250)
        store.flush()
        before = clock.now
        assert len(store.expirable(before).segments) >= 100
        with store._appender.appending():  # as a put that takes long
            expired = store.stats()["expiredSegments"]
            store.expire(before)
            until(lambda: store.stats()["expiredSegments"] >= expired + 20)
        puts = 0
        while store.expirable(before).is_working:
            assert store.put_batch(messages([b"more"])).ok
            puts += 1
        assert puts > 0
        assert store.stats()["expiredSegments"] >= 100
    with Store.open(path) as reader:
        assert verify(reader).ok


def test_a_folder_that_may_not_be_changed_is_reported(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 30)
        store.flush()
        monkeypatch.setattr(
            "rmqstore_spark.engine.log.segment_files.os.unlink",
            lambda _: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")),
        )
        store.expire(clock.now)
        until(lambda: not store.expirable(clock.now).is_working)
        found = store.expirable(clock.now)
        assert "0000 could not be removed: Operation not permitted" in found.remark
        assert store.stats()["expiryFailures"] == 1
        monkeypatch.undo()
        assert store.state == "RUNNING", "the log itself is not in doubt"
        expire(store, clock.now)


def test_deleted_topics_and_new_ones_do_not_disturb_it(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, config(), clock=clock) as store:
        fill(store, clock, 10, "gone")
        fill(store, clock, 20)
        store.delete_topic("gone")
        expire(store, clock.now)
        assert isinstance(store.create_topic("gone"), TopicConfig)
        fill(store, clock, 1, "gone")
        store.flush()
        assert len(in_queues(path)["gone", 0]) == 2


# ---- what RocketMQ made -------------------------------------------------------------------------


@pytest.fixture(params=["trimmed", "trimmed-raw"])
def trimmed(request: pytest.FixtureRequest, golden: Golden) -> Path:
    return golden(request.param)


def test_a_trimmed_store_is_cleaned_as_rocketmq_cleans_it(trimmed: Path, tmp_path: Path) -> None:
    """The files that its own clean-up had not removed yet go, and the offsets are as it reports."""
    path = tmp_path / "store"
    shutil.copytree(trimmed / "store", path)
    meta = load_meta(trimmed)
    shape = {"maxHashSlotNum": meta.index_slots, "maxIndexNum": meta.index_entries}
    settings = config(**shape, cleanResourceInterval=100, deleteConsumeQueueFilesInterval=0)
    with StoreWriter.open(path, settings) as store:
        log_begin = store.stats()["commitLogMinOffset"]
        store._workers.expiry._round(0)
        ranges = store.stats()["queues"]
    file = "queues.settled.json" if trimmed.name == "trimmed-raw" else "queues.json"
    report = load_queues(trimmed, file)
    assert log_begin == report.min_physical_offset
    for (topic, queue_id), queue in report.queues.items():
        if queue.max_offset == 0:  # exists in a broker's memory only
            continue
        least = queue.min_offset if queue.readable else queue.max_offset
        assert ranges[topic][str(queue_id)] == [least, queue.max_offset]
        starts = [int(name) for name in names(path / "consumequeue" / topic / str(queue_id))]
        size = meta.consumequeue_file_size
        assert starts[0] == min(least, queue.max_offset - 1) * 20 // size * size
    with Store.open(path) as reader:
        assert verify(reader).ok


def test_segments_of_a_brokers_store_expire_and_its_offsets_stay_true(
    golden: Golden, tmp_path: Path
) -> None:
    """`live`: nothing of it is old, then all of it but the last segment."""
    path = tmp_path / "store"
    shutil.copytree(golden("live") / "store", path)
    meta = load_meta(golden("live"))
    shape = {"maxHashSlotNum": meta.index_slots, "maxIndexNum": meta.index_entries}
    report = load_queues(golden("live"))
    with StoreWriter.open(path, config(**shape)) as store:
        expire(store, 1_900_000_000_000)
        stats = store.stats()
        begin = stats["commitLogMinOffset"]
        assert begin > report.min_physical_offset or len(names(path / "commitlog")) == 1
        for (topic, queue_id), queue in report.queues.items():
            if queue.max_offset:
                assert stats["queues"][topic][str(queue_id)][1] == queue.max_offset
    with Store.open(path) as reader, Store.open(golden("live") / "store") as whole:
        assert verify(reader).ok
        for found in reader.queues():
            before = whole.queue(found.topic, found.queue_id)
            slots = range(before.min_offset, before.max_offset)
            alive = [slot for slot in slots if before.physical_offset(slot) >= begin]
            assert found.min_offset == min(alive, default=before.max_offset)


def test_a_store_can_still_keep_everything(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    assert StoreConfig().file_reserved_time == 0
    with StoreWriter.open(path, config(deleteWhen=EVERY_HOUR, **QUICK), clock=clock) as store:
        fill(store, clock, 20)
        store.flush()
        clock.now += 10_000 * HOUR
        assert store._workers.expiry._round(0)
        assert store.stats()["expiredSegments"] == 0
