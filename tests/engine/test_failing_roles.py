"""Changes of a role that fail, and what a demotion tells of slaves that lack something."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.role import load_role
from rmqstore_spark.errors import RmqStoreError, StoreWriteError
from tests.engine.test_roles import MASTER, SLAVE, copied, log_of
from tests.support.stores.storing import in_queues, messages, until


def test_a_demotion_waits_for_the_slaves_that_are_connected(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path, MASTER) as store:
        assert store.put_batch(messages([b"1"])).ok
        end, slave = store.published_end, store.slaves.join()
        connected = store.slaves.connected()
        assert store.slaves.await_all(connected, end, 0.01) == (1, 1, 0)
        slave.sent = end  # and may be lost
        assert store.slaves.await_all(connected, end, 0.01) == (1, 1, 0)
        slave.is_observer = True
        assert store.slaves.await_all(connected, end, 30) == (1, 0, 1)
        slave.is_observer = False
        threading.Timer(0.05, lambda: slave.report(end)).start()
        assert store.slaves.await_all(connected, end, 30) == (1, 0, 0)


def test_a_demotion_counts_a_slave_that_leaves_too_early(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path, MASTER) as store:
        assert store.put_batch(messages([b"1"])).ok
        end, early, late = store.published_end, store.slaves.join(), store.slaves.join()
        connected = store.slaves.connected()
        late.report(end)
        late.leave()
        threading.Timer(0.05, early.leave).start()
        assert store.slaves.await_all(connected, end, 30) == (2, 1, 0)


def test_a_promotion_that_cannot_be_written_leaves_a_slave(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "master", MASTER) as master:
        assert master.put_batch(messages([b"1"])).ok
        data = log_of(master)
    with StoreWriter.open(tmp_path / "slave", SLAVE) as slave:
        (tmp_path / "slave" / "rmqstore" / "role.json.tmp").mkdir()
        with pytest.raises(Exception, match=r"role\.json"):
            slave.promote()
        assert slave.state == "SLAVE"
        copied(slave, data)
        (tmp_path / "slave" / "rmqstore" / "role.json.tmp").rmdir()
        assert slave.promote() == len(data)


def test_a_demotion_without_room_for_the_queues_leaves_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, truncate = [True], os.ftruncate

    def ftruncate(descriptor: int, size: int) -> None:
        if is_full[0] and "/consumequeue/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    with StoreWriter.open(tmp_path, MASTER) as store:
        assert store.put_batch(messages([b"1"])).ok
        with pytest.raises(RmqStoreError, match="No space left"):
            store.demote("h:1")
        assert not store.role.follows
        assert not (tmp_path / "rmqstore" / "role.json").exists()
        is_full[0] = False
        until(lambda: store.state == "RUNNING")
        assert store.demote("h:1") == store.published_end
    assert in_queues(tmp_path) == {("T", 0): [b"1"]}


class Watcher:
    """Notes that it was told, and has an error."""

    told = 0

    def role_changed(self) -> None:
        self.told += 1
        raise RuntimeError("not ready")


def test_a_change_is_whole_if_a_watcher_has_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StoreWriter.open(tmp_path, SLAVE) as store:
        watchers = [Watcher(), Watcher()]
        for watcher in watchers:
            store.role.watch(watcher)
        assert store.promote() == 0
        assert store.put_batch(messages([b"1"])).ok
        assert store.demote("h:2") == store.published_end
        assert store.config.ha_master_address == "h:2"
        assert [watcher.told for watcher in watchers] == [2, 2]
    assert caplog.text.count("RuntimeError: not ready") == 4


@pytest.mark.parametrize("name", ["rmqstore-delay", "rmqstore-transactions"])
def test_a_new_master_without_its_threads_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with StoreWriter.open(tmp_path, SLAVE) as store:
        monkeypatch.setattr(threading.Thread, "start", starts)
        store.promote()
        assert store.state == "FAILED"


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often from now on a flush of the folder with the role fails, after the file's rename."""
    left, flush = [0], os.fsync

    def fsync(descriptor: int) -> None:
        if left[0] and os.readlink(f"/proc/self/fd/{descriptor}").endswith("/rmqstore"):
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    yield left
    assert left == [0]


@pytest.mark.parametrize("given", [MASTER, SLAVE])
def test_a_change_that_may_not_be_on_disk_is_undone(
    tmp_path: Path, unflushed: list[int], given: StoreConfig
) -> None:
    with StoreWriter.open(tmp_path, given) as store:
        before, state = load_role(str(tmp_path)), store.state
        unflushed[0] = 1
        with pytest.raises(StoreWriteError, match="flushed"):
            store.promote() if given is SLAVE else store.demote("h:1")
        assert load_role(str(tmp_path)) == before
        assert store.state == state


@pytest.mark.parametrize("given", [MASTER, SLAVE])
def test_a_store_fails_whose_next_start_may_find_another_role(
    tmp_path: Path, unflushed: list[int], given: StoreConfig
) -> None:
    with StoreWriter.open(tmp_path, given) as store:
        unflushed[0] = 2
        with pytest.raises(StoreWriteError, match="flushed"):
            store.promote() if given is SLAVE else store.demote("h:1")
        assert store.state == "FAILED"
