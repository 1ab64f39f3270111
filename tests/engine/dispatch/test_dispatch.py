from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.engine.dispatch import dispatcher as dispatcher_module
from rmqstore_spark.engine.dispatch import indexes as indexes_module
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.dispatch.indexes import IndexFiles, IndexShape
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.recovery.redispatch import log_blocks
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import write_all
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.log.commitlog import CommitLog
from tests.support.stores.golden import load_entries, load_meta, load_records
from tests.support.stores.recovering import expected_keys, indexed_keys
from tests.support.stores.storing import until
from tests.support.waiting import PATIENCE

Golden = Callable[[str], Path]


def appended(golden: Path) -> Iterator[Appended]:
    """What is in the log of a golden store, as the log's writer would hand it over."""
    with Store.open(golden / "store") as store:
        log: CommitLog = store.log
        for part in log_blocks(log, log.min_offset, store.log_end()):
            for row in range(len(part.block)):
                begin = int(part.block.starts[row])
                data = part.block.data[begin : begin + int(part.block.sizes[row])].copy()
                yield Appended(
                    read_block(data),
                    part.physical_offset[row : row + 1],
                    part.records.queue_offset[row : row + 1],
                    int(part.records.store_timestamp[row]),
                )


def parts(
    store: Path, golden: Path
) -> tuple[ConsumeQueues, IndexFiles, CheckpointKeeper, Dispatcher]:
    meta = load_meta(golden)
    store.mkdir(exist_ok=True)
    queues = ConsumeQueues(str(store), CONSUME_QUEUE, file_size=meta.consumequeue_file_size)
    shape = IndexShape(meta.index_slots, meta.index_entries)
    keeper = CheckpointKeeper(str(store))
    indexes = IndexFiles(
        str(store), clock=lambda: 1_800_000_000_000, shape=shape,
        on_sealed=lambda time: keeper.advance(index=time),
    )  # fmt: skip
    return queues, indexes, keeper, Dispatcher(queues, indexes, keeper, Health(str(store)))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("name", ["basic", "flags", "tiny"])
def test_queues_and_index_are_those_of_a_broker(
    golden: Golden, tmp_path: Path, name: str, later: bool
) -> None:
    folder = golden(name)
    queues, indexes, keeper, dispatcher = parts(tmp_path / "s", folder)
    with dispatcher.putting_off() if later else nullcontext():
        for job in appended(folder):
            dispatcher.submit(job)
    assert dispatcher.drain()
    dispatcher.flush(sync_index=True)
    dispatcher.close()
    for route, listed in load_entries(folder).items():
        held = queues.read(*route, listed[0].offset, len(listed))
        assert [e.item() for e in held] == [
            (e.physical_offset, e.size, e.tags_code) for e in listed
        ]
    records = load_records(folder)
    slots = load_meta(folder).index_slots
    assert indexed_keys(tmp_path / "s", slots) == expected_keys(records)
    assert keeper.value.logics_msg_timestamp == records[-1].store_timestamp
    queues.close()
    indexes.close()


def test_a_block_that_was_put_off_is_dispatched_by_whoever_needs_it(
    golden: Golden, tmp_path: Path
) -> None:
    folder = golden("tiny")
    queues, indexes, _, dispatcher = parts(tmp_path / "s", folder)
    jobs = appended(folder)

    def put_off() -> Appended:
        job = next(jobs)
        with dispatcher.putting_off():
            dispatcher.submit(job)
        assert dispatcher.behind_bytes == job.size  # it is not there yet
        assert dispatcher.done_until < job.end
        return job

    job = put_off()
    dispatcher.dispatch_now()
    assert (dispatcher.done_until, dispatcher.behind_bytes) == (job.end, 0)
    dispatcher.dispatch_now()  # there is nothing any more
    put_off()
    job = next(jobs)
    dispatcher.submit(job)
    assert (dispatcher.done_until, dispatcher.behind_bytes) == (job.end, 0)
    job = put_off()
    other = threading.Thread(target=dispatcher.drain)
    other.start()
    other.join(PATIENCE)
    assert dispatcher.done_until == job.end
    job = put_off()
    dispatcher.close()
    assert dispatcher.done_until == job.end
    queues.close()
    indexes.close()


class SlowQueues(ConsumeQueues):
    """Queues that wait to be let."""

    def __init__(self, store: str) -> None:
        super().__init__(store, CONSUME_QUEUE, file_size=2000)
        self.reached, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def append(self, *args: object) -> None:
        self.reached.release()
        self.go.acquire()
        super().append(*args)  # type: ignore[arg-type]  # as given


def test_small_blocks_do_not_wait_for_large_ones(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones wait for each other, so that they do not fill the memory."""
    jobs = list(appended(golden("tiny")))[:5]
    first, small, second = together(jobs[:2]), jobs[2], together(jobs[3:])
    monkeypatch.setattr(dispatcher_module, "_SMALL", small.size)
    assert min(first.size, second.size) > small.size
    monkeypatch.setattr(dispatcher_module, "_MOST_LARGE", first.size)
    queues = SlowQueues(str(tmp_path))
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), Health(str(tmp_path)))
    assert dispatcher.submit(first)
    queues.reached.acquire()
    assert dispatcher.has_room(small.size)
    assert dispatcher.submit(small, 0)
    assert dispatcher.behind_bytes == first.size + small.size
    assert not dispatcher.has_room(second.size)
    assert not dispatcher.submit(second, 0.01)
    queues.go.release(len(jobs) * 10)
    dispatcher.await_room(second.size, 20)
    assert dispatcher.has_room(second.size)
    assert dispatcher.submit(second, 0)
    assert dispatcher.drain(20)
    assert (dispatcher.behind_bytes, dispatcher.done_until) == (0, second.end)
    dispatcher.close()


def test_nobody_waits_for_the_blocks_of_a_commit(golden: Golden, tmp_path: Path) -> None:
    """But for those that came before, if these are too many."""
    jobs = list(appended(golden("basic")))[:60]
    queues = SlowQueues(str(tmp_path))
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), Health(str(tmp_path)))
    dispatcher.submit_all(jobs[:2])
    queues.reached.acquire()
    for job in jobs[2:-1]:
        assert dispatcher.submit(job, 0)
    assert not dispatcher.await_end(jobs[1].end, 0)
    assert dispatcher.behind_bytes == sum(job.size for job in jobs[:-1])
    queues.go.release(len(jobs) * 10)
    assert dispatcher.await_end(jobs[1].end, 20)
    assert dispatcher.drain(20)
    assert dispatcher.done_until == jobs[-2].end
    assert dispatcher.submit(jobs[-1])
    dispatcher.close()


def test_what_waits_behind_a_commit_is_bounded(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = list(appended(golden("basic")))[:10]
    monkeypatch.setattr(dispatcher_module, "_MOST_BYTES", jobs[2].size + 1)
    queues = SlowQueues(str(tmp_path))
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), Health(str(tmp_path)))
    dispatcher.submit_all(jobs[:2])
    queues.reached.acquire()
    assert dispatcher.submit(jobs[2], 0)
    assert dispatcher.submit(jobs[3], 0)
    assert not dispatcher.submit(jobs[4], 0.01)
    queues.go.release(len(jobs) * 10)
    assert dispatcher.submit(jobs[4], 20)
    assert dispatcher.drain(20)
    dispatcher.close()


def together(jobs: Sequence[Appended]) -> Appended:
    """Messages that are one block."""
    return Appended(
        read_block(np.concatenate([job.block.data for job in jobs])),
        np.concatenate([job.physical_offset for job in jobs]),
        np.concatenate([job.queue_offset for job in jobs]),
        jobs[-1].store_timestamp,
    )


def test_small_messages_are_dispatched_when_they_are_handed_over(
    golden: Golden, tmp_path: Path
) -> None:
    queues, indexes, keeper, dispatcher = parts(tmp_path / "s", golden("tiny"))
    one, *others = appended(golden("tiny"))
    for job in (one, together(others)):
        assert job.size < 1 << 16
        dispatcher.submit(job)
        assert (dispatcher.behind_bytes, dispatcher.done_until) == (0, job.end)
    dispatcher.flush(sync_index=True)
    dispatcher.close()
    assert keeper.value.logics_msg_timestamp == job.store_timestamp
    slots = load_meta(golden("tiny")).index_slots
    assert indexed_keys(tmp_path / "s", slots) == expected_keys(load_records(golden("tiny")))
    queues.close()
    indexes.close()


def test_a_small_message_does_not_wait_while_the_index_is_flushed(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, indexes, _, dispatcher = parts(tmp_path / "s", golden("tiny"))
    one, other, *_ = appended(golden("tiny"))
    dispatcher.submit(one)
    flushing, go = threading.Event(), threading.Event()
    real = write_all

    def held(*args: Any) -> None:
        if threading.current_thread() is thread:
            flushing.set()
            assert go.wait(PATIENCE)
        real(*args)

    thread = threading.Thread(target=dispatcher.flush)
    monkeypatch.setattr(indexes_module, "write_all", held)
    thread.start()
    assert flushing.wait(PATIENCE)
    try:
        assert dispatcher.submit(other, 0)
        assert dispatcher.behind_bytes == other.size
    finally:
        go.set()
        thread.join(PATIENCE)
    assert dispatcher.drain(PATIENCE)
    dispatcher.close()
    queues.close()
    indexes.close()


@pytest.mark.parametrize("failing", ["queues", "indexes"])
def test_the_thread_continues_what_has_no_room_when_it_is_handed_over(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Nothing is written twice."""
    queues, indexes, _, dispatcher = parts(tmp_path / "s", golden("tiny"))
    part, name = {"queues": (queues, "append"), "indexes": (indexes, "settle")}[failing]
    real, threads = getattr(part, name), []

    def full(*args: object) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) < 3:
            error = StoreWriteError("no room")
            error.errno = errno.ENOSPC
            raise error
        real(*args)

    monkeypatch.setattr(part, name, full)
    jobs = list(appended(golden("tiny")))
    dispatcher.submit(together(jobs))
    assert dispatcher.drain(30)
    assert threads[:2] == [threading.current_thread().name, "rmqstore-dispatch"]
    dispatcher.flush(sync_index=True)
    dispatcher.close()
    held = sum(end - least for ids in queues.ranges().values() for least, end in ids.values())
    assert held == sum(int(job.block.queued.sum()) for job in jobs)
    slots = load_meta(golden("tiny")).index_slots
    assert indexed_keys(tmp_path / "s", slots) == expected_keys(load_records(golden("tiny")))
    queues.close()
    indexes.close()


def test_the_thread_continues_what_ctrl_c_interrupts(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, indexes, _, dispatcher = parts(tmp_path / "s", golden("tiny"))
    real, threads = queues.append, list[str]()

    def interrupted(*args: object) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 1:
            raise KeyboardInterrupt
        real(*args)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(queues, "append", interrupted)
    jobs = list(appended(golden("tiny")))
    with pytest.raises(KeyboardInterrupt):
        dispatcher.submit(together(jobs))
    assert dispatcher.drain(30)
    assert threads[1] == "rmqstore-dispatch"
    dispatcher.close()
    held = sum(end - least for ids in queues.ranges().values() for least, end in ids.values())
    assert held == sum(int(job.block.queued.sum()) for job in jobs)
    queues.close()
    indexes.close()


def test_the_caller_is_told_of_a_failure_with_its_next_block(
    golden: Golden, tmp_path: Path
) -> None:
    jobs = list(appended(golden("tiny")))
    (tmp_path / "consumequeue").write_text("in the way")
    keeper = CheckpointKeeper(str(tmp_path))
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE)
    dispatcher = Dispatcher(queues, None, keeper, Health(str(tmp_path)))
    dispatcher.submit(together(jobs[:2]))
    with pytest.raises(StoreWriteError, match="Restart the store process"):
        dispatcher.submit(together(jobs[2:4]))
    assert keeper.value.logics_msg_timestamp == 0
    dispatcher.close()


class FullQueues(ConsumeQueues):
    """Queues that have no room until they are given some."""

    def __init__(self, store: str) -> None:
        super().__init__(store, CONSUME_QUEUE, file_size=2000)
        self.has_room = threading.Event()

    def append(self, *args: object) -> None:
        if not self.has_room.is_set():
            error = StoreWriteError("no room")
            error.errno = errno.ENOSPC
            raise error
        super().append(*args)  # type: ignore[arg-type]  # as given


def test_promise_6_what_is_in_the_log_already_waits_for_no_room(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that was accepted right before the disk was full is answered; the next are refused."""
    jobs = list(appended(golden("tiny")))[:3]
    monkeypatch.setattr(dispatcher_module, "_MOST_BYTES", jobs[0].size + 1)
    queues = FullQueues(str(tmp_path))
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), Health(str(tmp_path)))
    for job in jobs[:2]:
        submitting = threading.Thread(target=dispatcher.submit, args=(job,))
        submitting.start()
        submitting.join(10)
        assert not submitting.is_alive()
    assert dispatcher.stalled is not None
    assert dispatcher.behind_bytes == sum(job.size for job in jobs[:2])
    assert not dispatcher.submit(jobs[2], 0.01)
    assert not dispatcher.drain(0.01)
    queues.has_room.set()
    dispatcher.submit(jobs[2])
    assert dispatcher.drain(10)
    dispatcher.close()
    held = sum(end - least for ids in queues.ranges().values() for least, end in ids.values())
    assert held == sum(int(job.block.queued.sum()) for job in jobs)


def test_a_failure_is_told_to_all_that_follow(golden: Golden, tmp_path: Path) -> None:
    jobs = appended(golden("tiny"))
    (tmp_path / "consumequeue").write_text("in the way")
    keeper = CheckpointKeeper(str(tmp_path))
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE)
    dispatcher = Dispatcher(queues, None, keeper, Health(str(tmp_path)))
    dispatcher.submit(next(jobs))
    for _ in range(2):
        with pytest.raises(StoreWriteError, match="Restart the store process"):
            dispatcher.submit(next(jobs))
    with pytest.raises(StoreWriteError):
        dispatcher.drain()
    assert isinstance(dispatcher.failure, StoreWriteError)
    assert keeper.value.logics_msg_timestamp == 0
    dispatcher.close()


def test_what_is_in_the_log_already_waits_for_no_room_behind_a_commit(
    golden: Golden, tmp_path: Path
) -> None:
    """The put that has its lock would keep all others out."""
    jobs = list(appended(golden("tiny")))[:6]
    queues = FullQueues(str(tmp_path))
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), Health(str(tmp_path)))
    dispatcher.submit_all(jobs[:4])
    until(lambda: dispatcher.stalled is not None)
    assert dispatcher.submit(jobs[4], 0)
    queues.has_room.set()
    assert dispatcher.await_end(jobs[4].end, 20)
    dispatcher.close()
    assert not dispatcher.await_end(jobs[5].end)  # it does not come any more


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 128 KiB of room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root alone")
    yield folder
    # Lazily: threads of a test that failed may still use it.
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    """Write a file until there is no room."""
    left = os.statvfs(path.parent)
    path.write_bytes(bytes(left.f_bavail * left.f_frsize))
    assert os.statvfs(path.parent).f_bavail == 0


@pytest.mark.fault
def test_promise_6_a_full_disk_holds_it_up_until_there_is_room(
    golden: Golden, small_disk: Path
) -> None:
    folder = golden("basic")
    jobs = list(appended(folder))[:400]
    queues, indexes, _, dispatcher = parts(small_disk, folder)
    filling = small_disk / "filling"
    fill(filling)

    def submit() -> None:
        for job in jobs:
            dispatcher.submit(job)

    done = threading.Thread(target=submit)
    done.start()
    waiting = threading.Event()
    while (stalled := dispatcher.stalled) is None and done.is_alive():
        waiting.wait(0.01)
    assert stalled is not None
    assert stalled.errno == errno.ENOSPC
    assert dispatcher.failure is None
    filling.unlink()
    done.join()
    assert dispatcher.drain()
    dispatcher.flush(sync_index=True)
    dispatcher.close()
    records = load_records(folder)[:400]
    assert indexed_keys(small_disk, load_meta(folder).index_slots) == expected_keys(records)
    for route, (least, end) in (
        ((topic, n), span) for topic, ids in queues.ranges().items() for n, span in ids.items()
    ):
        held = queues.read(*route, least, end - least)["physicalOffset"]
        wanted = [r.physical_offset for r in records if (r.topic, r.queue_id) == route]
        assert np.array_equal(held, wanted)
    queues.close()
    indexes.close()
