"""Masters that change, come back with less, or cannot be reached; slaves that take nothing.

A follower's log stays the beginning of one master's, and the one that is left continues.
"""

from __future__ import annotations

import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from tests.fault.proxy import BreakingProxy
from tests.ha.peers import (
    PlainMaster,
    PlainSlave,
    caught_up,
    following,
    frames,
    log_bytes,
    mastering,
)  # fmt: skip
from tests.support.messages.batches import rows_block, small_segments
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually


def written(path: Path, name: str, count: int = 40) -> bytes:
    """Put messages into a store that is closed; returns its log."""
    with StoreWriter.open(path, small_segments()) as store:
        assert store.put(rows_block([f"{name}/{n}".encode() * 9 for n in range(count)])).ok
        return log_bytes(path, 0, store.published_end)


_UNHELD = (PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE)
"""The messages are stored here only. Which of both depends on whether a slave is connected."""


def test_a_partition_longer_than_each_timeout_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"ha_housekeeping_interval": 600, "ha_send_heartbeat_interval": 50}
    sync = {**given, "broker_role": "SYNC_MASTER", "slave_timeout": 100}
    counts = {**given, "ha_acknowledge": "true"}
    with mastering(tmp_path / "master", **sync) as (store, master):
        port = int(master.address.rpartition(":")[2])
        with (
            BreakingProxy(port) as between,
            following(tmp_path / "slave", f"127.0.0.1:{between.port}", **counts) as (copy, _),
        ):
            eventually(lambda: store.put(rows_block([b"before"])).ok)
            between.hold()
            first = store.put(rows_block([b"first"]))
            assert first.status in _UNHELD
            eventually(lambda: "ends: it sent nothing for" in caplog.text)  # the master gave it up
            assert store.put(rows_block([b"later"])).status in _UNHELD
            made = between.connections
            eventually(lambda: between.connections > made)  # the follower gave this one up, too
            assert copy.replica.end < first.end_offset
            between.release()
            eventually(lambda: store.put(rows_block([b"after"])).ok)
            end = store.published_end
            caught_up(copy, end)
    assert log_bytes(tmp_path / "slave", 0, end) == log_bytes(tmp_path / "master", 0, end)


def test_two_masters_at_one_address_are_never_mixed(tmp_path: Path) -> None:
    """They have the same beginning, and the follower reaches one, and then the other."""
    begin = len(written(tmp_path / "one", "common"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = written(tmp_path / "one", "one", 60), written(tmp_path / "two", "two")
    sent = iter([one[:begin], two, one])

    def serve(connection: socket.socket, first: int) -> None:
        for frame in frames(next(sent), first, 3000):
            connection.sendall(frame)
        connection.shutdown(socket.SHUT_RDWR)

    with PlainMaster(serve) as master:
        with following(tmp_path / "slave", master.address) as (copy, follower):
            eventually(lambda: follower.failure is not None)
            assert copy.replica.end == len(two)
        assert f"holds a log up to {len(two)}" in str(follower.failure)
        assert master.connections == 3
    assert log_bytes(tmp_path / "slave", 0, len(two)) == two


@pytest.mark.parametrize("has", ["lost its disk", "an older copy", "another end"])
def test_a_master_that_comes_back_with_less_is_not_followed(tmp_path: Path, has: str) -> None:
    path = tmp_path / "master"
    served: dict[str, Any] = {"ha_listen_port": free_port(), "ha_send_heartbeat_interval": 50}
    with mastering(path, **served) as (store, _):
        assert store.put(rows_block([b"one%d" % n for n in range(30)])).ok
    if has != "lost its disk":
        shutil.copytree(path, tmp_path / "older")
    address = f"127.0.0.1:{served['ha_listen_port']}"
    with following(tmp_path / "slave", address) as (copy, follower):
        with mastering(path, **served) as (store, _):
            assert store.put(rows_block([b"two%d" % n for n in range(30)])).ok
            end = store.published_end
            caught_up(copy, end)
        with mastering(tmp_path / "older", **served) as (store, _):
            if has == "another end":
                assert store.put(rows_block([b"three%d" % n for n in range(60)])).ok
                assert store.published_end > end
            eventually(lambda: follower.failure is not None)
        assert copy.replica.end == end
    text = str(follower.failure)
    assert f"holds a log up to {end}" in text
    assert "--restart-from earliest" in text
    assert log_bytes(tmp_path / "slave", 0, end) == log_bytes(path, 0, end)


@pytest.mark.threat("Replication")
@pytest.mark.parametrize("sends", [(1).to_bytes(8, "big"), b"\0"])
def test_a_slave_that_reports_and_reads_nothing_holds_up_nobody(
    tmp_path: Path, sends: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It repeats a report, or sends its first one byte by byte, which asks for the last segment."""
    given = {"ha_housekeeping_interval": 2000, "mapped_file_size_commit_log": 16 << 20}
    block = rows_block([bytes(100_000)] * 10)
    ended = threading.Event()
    with (
        mastering(tmp_path, mapped_file_size_consume_queue=6000, **given) as (store, master),
        PlainSlave(master.address) as slave,
    ):

        def report() -> None:
            with suppress(OSError):
                while not ended.wait(0.02):
                    slave.connection.sendall(sends)

        thread = threading.Thread(target=report)
        thread.start()
        try:
            eventually(lambda: len(store.slaves) == 1)
            for _ in range(14):  # more than the buffers of a connection hold
                assert store.put(block).ok
            eventually(lambda: len(store.slaves) == 0)
            assert "it took nothing for" in caplog.text
            assert store.put(block).ok
        finally:
            ended.set()
            thread.join()
