"""Segments expire at a master that has slow slaves, and at a slave."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from tests.ha.peers import PlainSlave, caught_up, following, mastering
from tests.support.messages.batches import commit_batch, rows_block, small_segments
from tests.support.waiting import eventually


def later() -> int:
    """A time after all messages: milliseconds since the epoch."""
    return int(time.time() * 1000) + 3_600_000


def expired(store: StoreWriter) -> int:
    """Remove all segments but the last; returns where the log begins then."""
    before = later()
    store.flush()
    store._workers.drain()  # what is not in the queues yet does not expire
    store.expire(before)
    eventually(lambda: not store.expirable(before).is_working)
    return int(store.stats()["commitLogMinOffset"])


class Times:
    """The seconds that pass for segments in use."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_slow_slave_delays_expiry_and_is_dropped_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times()
    monkeypatch.setattr("rmqstore_spark.engine.expiry.segments.time", times)
    sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 6000}
    settings = {**sizes, "redelete_hanged_file_interval": 1000}
    block = [bytes(100_000)] * 10
    with mastering(tmp_path, **settings) as (store, master), PlainSlave(master.address) as slave:
        slave.report(1)
        for _ in range(30):  # more than the buffers of a connection hold
            assert store.put(rows_block(block)).ok
        store.flush()
        before = later()
        last = store.expirable(before).segments[-1].end
        store.expire(before)
        eventually(lambda: "reads the segment" in store.expirable(before).remark)
        assert store.stats()["commitLogMinOffset"] < last
        times.now += 1.0
        eventually(lambda: store.stats()["commitLogMinOffset"] == last)
        assert slave.is_closed()
        eventually(lambda: "has expired" in caplog.text)


def test_readers_that_are_idle_hold_no_segment_that_has_expired(tmp_path: Path) -> None:
    with mastering(tmp_path) as (store, master), PlainSlave(master.address) as slave:
        for turn in range(9):
            assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(60)])).ok
        reader = store.queue_reader()
        assert reader.read("orders", 0, 0, 32).count > 0  # of the first segment
        slave.report(1)
        slave.frame()
        begin = expired(store)
        assert begin > 8192
        eventually(
            lambda: not [path for path in open_files(tmp_path) if path.endswith("(deleted)")]
        )
        reader.close()


def open_files(store: Path) -> list[str]:
    """The files of a store's log that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(f"{store}/commitlog/")]


def test_a_slave_remembers_commits_whose_markers_have_expired(tmp_path: Path) -> None:
    with mastering(tmp_path / "master") as (store, master):
        for number in range(3):
            commit_batch(store, number)
        for turn in range(20):
            assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(40)])).ok
        end = store.published_end
        with following(tmp_path / "slave", master.address) as (slave, _):
            caught_up(slave, end)
            markers = store.stats()["queues"][MARKER_TOPIC]["0"]
            assert expired(slave) > 0
            found = slave.stats()["queues"][MARKER_TOPIC]["0"]
            assert found == [markers[1]] * 2, "the markers have expired"
    with StoreWriter.open(tmp_path / "slave", small_segments()) as promoted:
        assert commit_batch(promoted, 2).status == "ALREADY_COMMITTED"
