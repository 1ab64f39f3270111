"""What others do while a batch is committed: they append before its block, or wait if they must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.append import store_time
from rmqstore_spark.engine.append.commit import HeldUpError
from rmqstore_spark.engine.batches import batch_block, writing
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.log import commitlog
from rmqstore_spark.errors import RefusedError, RmqStoreError
from rmqstore_spark.layout.constants import FILLER_TOPIC
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.filler import MIN_FILLER
from rmqstore_spark.layout.spans import U1, string_array
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.log.walk import Flaw, walk_log
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.verify import verify
from tests.support.messages.batches import (
    BATCH,
    QUERY,
    bodies,
    commit_batch,
    expected,
    rows_block,
    scanned,
    shown,
    small_segments,
    stage_batch,
)
from tests.support.messages.blocks import encoded
from tests.support.processes import forked
from tests.support.processes.beside import PLACES
from tests.support.stores.storing import until

ROOT = Path(__file__).parents[3]
ONE_SEGMENT = "1048576"
MANY_SEGMENTS = "8192"


@pytest.fixture(autouse=True)
def all_batches_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LARGE", 0)
    monkeypatch.setattr(writing, "_ROOM_PART", 1)  # as much room as the batch has bytes, at most
    for constant in ("_LEAST_SPARE_MS", "_MOST_AHEAD_MS"):  # each is written once, however slowly
        monkeypatch.setattr(store_time, constant, 600_000)


@pytest.fixture
def at_places(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Call something at each place that a commit reaches."""

    def call(act: Callable[[str], object]) -> None:
        for module in (batch_block, writing, commitlog):
            monkeypatch.setattr(module, "reach", lambda name: act(name.removeprefix("commit.")))

    return call


def other(name: str, rows: int = 3) -> list[bytes]:
    return bodies(f"other {name}", rows)


def put_others(store: StoreWriter, name: str, rows: int = 3) -> None:
    assert store.put(rows_block(other(name, rows), ["others"])).ok


def fillers(path: Path) -> int:
    """Return the bytes of fillers, of a log that has no flaw but its end."""
    found, ends = 0, []
    with Store.open(path) as store:
        for item in walk_log(store.log, store.log.min_offset, store.log.file_end):
            if isinstance(item, Flaw):
                ends.append(item.offset)
                continue
            topics = np.array(string_array(item.records.topic).to_pylist())
            found += int(item.records.store_size[topics == FILLER_TOPIC].sum())
            times = item.records.store_timestamp
            assert (np.diff(times) >= 0).all()
    assert len(ends) <= 1
    return found


def require_sound(path: Path) -> None:
    with Store.open(path) as store:
        assert verify(store).errors == 0
        for queue in store.queues():
            rows = [r for b in store.read(queue.topic, queue.queue_id) for r in b.to_pylist()]
            assert [r["queueOffset"] for r in rows] == list(range(len(rows)))
            assert all(a["physicalOffset"] < b["physicalOffset"] for a, b in pairwise(rows))
            assert all(a["storeTimestamp"] <= b["storeTimestamp"] for a, b in pairwise(rows))
    assert sorted(shown(path).elements()) == sorted(scanned(path))


@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("before", [0, 1, 5, 12, 20])
def test_messages_for_other_queues_are_stored_before_it_at_every_step(
    tmp_path: Path, at_places: Callable[..., None], size: str, before: int
) -> None:
    """Wherever in a segment the batch begins."""
    path, told = tmp_path / "store", list[str]()

    def put(place: str) -> None:
        if place in PLACES:
            name = f"{place} {len(told)}"
            put_others(store, name, 1)
            told.append(name)

    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=size)) as store:
        for number in range(before):
            put_others(store, f"first {number}", 1)
        at_places(put)
        commit_batch(store, 0)
        at_places(lambda _: None)
        put_others(store, "last")
    assert len(told) >= len(PLACES)
    first = [b for n in range(before) for b in other(f"first {n}", 1)]
    meanwhile = [b for name in told for b in other(name, 1)]
    assert scanned(path) == [*first, *meanwhile, *expected(0), *other("last")]
    require_sound(path)
    assert fillers(path) >= MIN_FILLER or size == MANY_SEGMENTS


def test_what_fills_up_the_room_is_not_read_as_a_message(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=ONE_SEGMENT)) as store:
        commit_batch(store, 0)
    assert fillers(path) > 0
    with Store.open(path) as store:
        topics = {row["topic"] for b in store.scan() for row in b.to_pylist()}
        assert FILLER_TOPIC not in topics
        assert FILLER_TOPIC not in {topic.name for topic in store.topics()}


def test_a_small_batch_leaves_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LARGE", 1 << 20)
    path = tmp_path / "store"
    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=ONE_SEGMENT)) as store:
        assert commit_batch(store, 0).physical_offset == 0
    assert fillers(path) == 0


def test_messages_for_its_queues_wait_and_come_behind_it(
    tmp_path: Path, at_places: Callable[..., None]
) -> None:
    path, waiting = tmp_path / "store", list[threading.Thread]()
    blocks = [rows_block(bodies(f"same {n}", 1)) for n in range(3)]

    def put(place: str) -> None:
        if place == "after_head":
            with pytest.raises(HeldUpError):
                store.put_written(read_block(blocks[0]), patient=False)
            for block in blocks:
                waiting.append(threading.Thread(target=lambda data=block: store.put(data)))
                waiting[-1].start()
        if place == "before_publish":
            assert store.held_topics >= {"orders", "bills"}
            assert all(thread.is_alive() for thread in waiting)

    with StoreWriter.open(path, small_segments(osPageCacheBusyTimeOutMills="60000")) as store:
        at_places(put)
        commit_batch(store, 0)
        for thread in waiting:
            thread.join(60)
        assert store.held_topics == frozenset()
    rows = scanned(path)
    assert rows[:BATCH] == expected(0)
    assert sorted(rows[BATCH:]) == sorted(b for n in range(3) for b in bodies(f"same {n}", 1))
    require_sound(path)


def test_a_message_for_its_queues_is_refused_after_the_patience_of_the_lock(
    tmp_path: Path, at_places: Callable[..., None]
) -> None:
    refused = list[tuple[str, str]]()

    def put(place: str) -> None:
        if place == "before_sync":
            result = store.put(rows_block(bodies("same", 1)))
            refused.append((str(result.status), result.remark))

    config = small_segments(osPageCacheBusyTimeOutMills="50")
    with StoreWriter.open(tmp_path / "store", config) as store:
        at_places(put)
        assert commit_batch(store, 0).status == "COMMITTED"
    ((status, remark),) = refused
    assert status == "OS_PAGECACHE_BUSY"
    assert "50 ms" in remark
    assert scanned(tmp_path / "store") == expected(0)


def test_of_messages_that_are_put_together_only_those_for_its_queues_wait(
    tmp_path: Path, at_places: Callable[..., None]
) -> None:
    """Also those that were on their way when the commit began."""
    path, done = tmp_path / "store", list[str]()
    names = [f"{topic} {n}" for n in range(8) for topic in ("orders", "others")]
    threads = list[threading.Thread]()

    def put(name: str) -> None:
        block = rows_block(bodies(name, 1), [name.split()[0]])
        assert store.put(block).ok
        done.append(name)

    def others_are_done() -> bool:
        return sum(name.startswith("others") for name in done) == 8

    def begin(place: str) -> None:
        if place == "before_write":
            for name in names:
                threads.append(threading.Thread(target=put, args=(name,)))
                threads[-1].start()
            until(others_are_done)
        if place == "before_publish":
            assert not [name for name in done if name.startswith("orders")]

    with StoreWriter.open(path, small_segments(osPageCacheBusyTimeOutMills="60000")) as store:
        at_places(begin)
        commit_batch(store, 0)
        for thread in threads:
            thread.join(60)
    assert sorted(done) == sorted(names)
    require_sound(path)


def test_what_has_no_room_before_it_waits(tmp_path: Path, at_places: Callable[..., None]) -> None:
    path, threads = tmp_path / "store", list[threading.Thread]()
    large = bodies("large", 200)

    def put(place: str) -> None:
        if place == "after_head":
            threads.append(
                threading.Thread(target=store.put, args=(rows_block(large, ["others"]),))
            )
            threads[0].start()
        if place == "before_publish":
            assert threads[0].is_alive()

    settings = {"mappedFileSizeCommitLog": ONE_SEGMENT, "osPageCacheBusyTimeOutMills": "60000"}
    with StoreWriter.open(path, small_segments(**settings)) as store:
        at_places(put)
        commit_batch(store, 0)
        threads[0].join(60)
    assert scanned(path) == [*expected(0), *large]
    require_sound(path)


@pytest.mark.parametrize("place", PLACES)
def test_a_commit_that_fails_leaves_what_was_put_meanwhile(
    tmp_path: Path, at_places: Callable[..., None], place: str
) -> None:
    path = tmp_path / "store"

    def fail(reached: str) -> None:
        if reached == place:
            put_others(store, place)
            raise RmqStoreError("as if something went wrong")

    with StoreWriter.open(path, small_segments()) as store:
        infos = stage_batch(store, "b0")
        at_places(fail)
        with pytest.raises(RmqStoreError, match="as if"):
            store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
        at_places(lambda _: None)
        put_others(store, "between")
        assert store.put(rows_block(bodies("same", 2))).ok
        store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
    before = [*other(place), *other("between"), *bodies("same", 2)]
    assert scanned(path) == [*before, *expected(0)]
    require_sound(path)


def test_what_has_become_scarce_meanwhile_does_not_refuse_it(
    tmp_path: Path, at_places: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"

    def fill(place: str) -> None:
        if place == "before_publish":  # a thread measures it every second
            monkeypatch.setattr("rmqstore_spark.engine.admission.disk_used_ratio", lambda _: 1.0)
            store._admission.look_at_disk()

    with StoreWriter.open(path, small_segments()) as store:
        at_places(fill)
        assert commit_batch(store, 0).status == "COMMITTED"
        assert not store.put(rows_block(bodies("full", 1))).ok
    assert scanned(path) == expected(0)
    require_sound(path)


@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
def test_nothing_is_left_of_a_block_that_is_written_and_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Else a later block's room would hold it, and records of it could come back to life."""
    path = tmp_path / "store"
    with StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=size)) as store:
        put_others(store, "first")
        infos = stage_batch(store, "b0")
        with monkeypatch.context() as broken:
            broken.setattr(store._admission, "require_alive", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
        store.flush()
        end = store.published_end
        for segment in (path / "commitlog").iterdir():
            if segment.name.isdigit():
                start = max(0, end - int(segment.name))
                assert not any(segment.read_bytes()[start:])
        put_others(store, "between", 30)
        store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), infos))
    assert scanned(path) == [*other("first"), *other("between", 30), *expected(0)]
    require_sound(path)


def test_a_store_that_closes_waits_for_the_queues_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reached, go = tmp_path / "store", threading.Event(), threading.Event()
    to_queues, results = batch_block.PartJob.to_queues, list[str]()

    def slowly(job: batch_block.PartJob, queues: ConsumeQueues) -> None:
        reached.set()
        assert go.wait(60)
        to_queues(job, queues)

    monkeypatch.setattr(batch_block.PartJob, "to_queues", slowly)
    store = StoreWriter.open(path, small_segments())
    committing = threading.Thread(target=lambda: results.append(commit_batch(store, 0).status))
    committing.start()
    assert reached.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    until(lambda: store.state == "CLOSED")
    go.set()
    for thread in (closing, committing):
        thread.join(60)
        assert not thread.is_alive()
    assert results == ["COMMITTED"]
    assert not (path / "abort").exists()
    require_sound(path)


def test_commits_come_one_after_the_other_and_close_waits_for_them(tmp_path: Path) -> None:
    path, failures = tmp_path / "store", list[BaseException]()
    store = StoreWriter.open(path, small_segments())

    def commit(number: int) -> None:
        try:
            stages = stage_batch(store, f"b{number}")
            store.batches.commit(CommitRequest(WriterId.of_batch(f"job {number}", 0), stages))
        except RefusedError:
            pass  # the store was closed before
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: store.stats()["commits"] > 1)
    store.close()
    for thread in threads:
        thread.join(60)
    assert not failures
    rows = scanned(path)
    assert len(rows) % BATCH == 0
    assert len(rows) >= 2 * BATCH
    require_sound(path)


def test_a_topic_is_deleted_after_the_commit_to_it(
    tmp_path: Path, at_places: Callable[..., None]
) -> None:
    deleting = list[threading.Thread]()

    def delete(place: str) -> None:
        if place == "after_head":
            deleting.append(threading.Thread(target=store.delete_topic, args=("bills",)))
            deleting[0].start()
        if place == "before_publish":
            assert "bills" in store.topics

    with StoreWriter.open(tmp_path / "store", small_segments()) as store:
        store.create_topics(["orders", "bills"])
        at_places(delete)
        commit_batch(store, 0)
        deleting[0].join(60)
        assert "bills" not in store.topics
        assert store.put(rows_block(bodies("again", 1), ["bills"])).queue_offset.tolist() == [0]


@pytest.mark.fault
@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize(
    "place", [*PLACES, "after_filler", "after_publish", "after_sync", "after_dispatch"]
)
def test_killed_at_a_place_what_was_put_before_it_is_there(
    tmp_path: Path, place: str, size: str
) -> None:
    """And the batch is whole or not there, and then once."""
    path = tmp_path / "store"
    module = "tests.support.processes.beside"
    done = forked.run([sys.executable, "-m", module, path, place, size])
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = [b for name in done.stdout.split() for b in other(name, 1)]
    is_there = place not in (*PLACES, "after_filler")
    assert scanned(path) == [*told, *(expected(0) if is_there else [])]
    config = small_segments(mappedFileSizeCommitLog=size)
    with StoreWriter.open(path, config) as store:
        put_others(store, "after")
        status = commit_batch(store, 0, attempt=1).status
        assert status == ("ALREADY_COMMITTED" if is_there else "COMMITTED")
    require_sound(path)
    assert [row for row in scanned(path) if row in set(expected(0))] == expected(0)


@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
def test_a_reader_takes_a_block_beyond_the_end_for_no_damage(tmp_path: Path, size: str) -> None:
    """It looked while the writer lived, which is then killed."""
    path, stop = tmp_path / "store", str(int(signal.SIGSTOP))
    command = [sys.executable, "-m", "tests.support.processes.beside"]
    with (
        subprocess.Popen(
            [*command, path, "before_publish", size, stop], cwd=ROOT, stdout=subprocess.PIPE
        ) as writer,
        ExitStack() as cleanup,
    ):
        cleanup.callback(writer.kill)
        assert os.WIFSTOPPED(os.waitpid(writer.pid, os.WUNTRACED)[1])
        with Store.open(path) as opened:
            rows = [row for b in opened.read("others", 0) for row in b.to_pylist()]
            writer.kill()
            writer.wait()
            scan = [row for b in opened.scan() for row in b.to_pylist()]
            keyed = query_by_key(opened, "others", "no such key")
        assert writer.stdout is not None
        told = [b for name in writer.stdout.read().decode().split() for b in other(name, 1)]
    assert told[: len(rows)] == [row["body"] for row in rows]
    assert told == [row["body"] for row in scan if row["topic"] == "others"]
    assert len(keyed) == 0


def test_a_batch_that_is_published_in_part_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = StoreWriter.open(path, small_segments())
    with monkeypatch.context() as broken:
        broken.setattr(commitlog, "reach", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            commit_batch(store, 0)
    assert store.state == "FAILED"
    refused = store.put(rows_block(other("after"), ["others"]))
    assert "published in part" in refused.remark
    store.close()
    with StoreWriter.open(path, small_segments()) as store:
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert scanned(path) == expected(0)
    require_sound(path)


def test_a_delayed_message_waits_for_delayed_ones_of_a_batch(
    tmp_path: Path, at_places: Callable[..., None]
) -> None:
    """They wait in one queue, whatever their topics are. Others that come with it do not."""
    path, done = tmp_path / "store", list[str]()
    threads = list[threading.Thread]()

    def delayed(topic: str) -> U1:
        return encoded(
            pa.RecordBatch.from_pydict(
                {
                    "topic": [topic],
                    "queueId": pa.array([0], pa.int32()),
                    "body": pa.array([topic.encode()]),
                    "properties": pa.array([b"DELAY\x011"]),
                    "bornTimestamp": pa.array([0]),
                }
            )
        )

    def put(name: str, block: U1) -> None:
        assert store.put(block).ok
        done.append(name)

    def begin(place: str) -> None:
        if place == "before_write":
            for number in range(8):
                given = f"plain {number}", rows_block(other(f"{number}", 1), ["others"])
                wait = f"delayed {number}", delayed("late")
                threads.extend(threading.Thread(target=put, args=each) for each in (given, wait))
            for thread in threads:
                thread.start()
            until(lambda: sum(name.startswith("plain") for name in done) == 8)
        if place == "before_publish":
            assert not [name for name in done if name.startswith("delayed")]

    with StoreWriter.open(path, small_segments(osPageCacheBusyTimeOutMills="60000")) as store:
        stage = store.batches.begin_stage("0" * 32)
        stage.append(rows_block(bodies("makes room", 200)))
        stage.append(delayed("orders"))
        at_places(begin)
        store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),)))
        for thread in threads:
            thread.join(60)
    assert len(done) == 16
