"""A master against a slave that is a plain socket, and a SYNC_MASTER's answers."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, CommitResult, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import RefusedError, ServiceError
from rmqstore_spark.ha.master import Master
from tests.ha.peers import (
    PlainSlave,
    caught_up,
    following,
    log_bytes,
    mastering,
    queue_files,
)  # fmt: skip
from tests.support.messages.batches import commit_batch, rows_block
from tests.support.processes.serving import served
from tests.support.waiting import eventually

SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 300}


def filled(store: StoreWriter, turns: int = 3) -> bytes:
    """Put messages and commit a batch, some times; returns the log."""
    for turn in range(turns):
        assert store.put(rows_block([f"{turn}/{n}".encode() * 9 for n in range(40)])).ok
        commit_batch(store, turn)
    return log_bytes(Path(store.path), 0, store.published_end)


def received(slave: PlainSlave, end: int) -> tuple[int, bytes]:
    """All that comes up to an offset, and where it begins."""
    begin, data = slave.frame()
    while begin + len(data) < end:
        offset, more = slave.frame()
        assert offset == begin + len(data)
        data += more
    return begin, data


def test_a_slave_gets_the_log_from_where_it_asks(tmp_path: Path) -> None:
    with mastering(tmp_path, ha_transfer_batch_size=1024) as (store, master):
        log = filled(store)
        last = len(log) - len(log) % 8192
        for asked, begin in ((1, 1), (5000, 5000), (len(log) - 3, len(log) - 3), (0, last)):
            with PlainSlave(master.address) as slave:
                slave.report(asked)
                offset, data = received(slave, len(log))
                assert (offset, data) == (begin, log[begin:])


def test_frames_have_the_size_that_is_set_and_never_span_two_segments(tmp_path: Path) -> None:
    with mastering(tmp_path, ha_transfer_batch_size=1024) as (store, master):
        log = filled(store)
        with PlainSlave(master.address) as slave:
            slave.report(1)
            at = 1
            while at < len(log):
                offset, data = slave.frame()
                assert offset == at
                assert 0 < len(data) <= 1024
                assert at // 8192 == (at + len(data) - 1) // 8192
                at += len(data)


def test_what_comes_later_is_sent_at_once_and_heartbeats_in_between(tmp_path: Path) -> None:
    with mastering(tmp_path, ha_send_heartbeat_interval=50) as (store, master):
        log = filled(store, 1)
        with PlainSlave(master.address) as slave:
            slave.report(len(log))
            assert slave.frame() == (len(log), b"")
            store.put(rows_block([b"later"]))
            offset, data = slave.frame()
            while not data:
                offset, data = slave.frame()
            assert offset == len(log)
            assert b"later" in data


@pytest.mark.threat("Replication")
@pytest.mark.parametrize("first", [-1, -(2**63)])
def test_a_negative_first_report_ends_the_connection(tmp_path: Path, first: int) -> None:
    with mastering(tmp_path) as (_, master), PlainSlave(master.address) as slave:
        slave.report(first)
        assert slave.is_closed()


@pytest.mark.threat("Replication")
def test_reports_past_what_was_sent_acknowledge_nothing(tmp_path: Path) -> None:
    """A broker takes the first one: every later put counts as replicated then."""
    with mastering(tmp_path, **SYNC) as (store, master):
        for reports in ((10**13,), (1, 10**13), (10**13, 10**13 - 1), (10**13, 10**13)):
            with PlainSlave(master.address) as slave:
                for offset in reports:
                    slave.report(offset)
                result = store.put(rows_block([b"one"]))
                assert not result.ok
                assert result.status.is_stored
            eventually(lambda: len(store.slaves) == 0)


def test_reports_that_go_back_end_the_connection(tmp_path: Path) -> None:
    with mastering(tmp_path) as (store, master):
        log = filled(store, 1)
        with PlainSlave(master.address) as slave:
            slave.report(1)
            received(slave, len(log))
            slave.report(len(log))
            eventually(lambda: store.slaves.held() == len(log))
            slave.report(len(log) - 1)
            assert slave.is_closed()


def test_a_flood_of_reports_and_of_connections_is_bounded(tmp_path: Path) -> None:
    with mastering(tmp_path) as (store, master):
        log = filled(store, 1)
        with PlainSlave(master.address) as slave:
            slave.report(1)
            received(slave, len(log))
            slave.connection.sendall(len(log).to_bytes(8, "big") * 50_000)
            eventually(lambda: store.slaves.held() == len(log))
        host, _, port = master.address.rpartition(":")
        many = [socket.create_connection((host, int(port))) for _ in range(80)]
        eventually(lambda: len(store.slaves) == 64)
        for one in many:
            one.close()
        eventually(lambda: len(store.slaves) == 0)
        with PlainSlave(master.address) as slave:
            slave.report(1)
            assert received(slave, len(log))[1] == log[1:]


def test_a_slave_that_neither_reads_nor_reports_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mastering(tmp_path, ha_housekeeping_interval=200) as (store, master):
        filled(store, 1)
        with PlainSlave(master.address) as slave:
            assert slave.is_closed()
            eventually(lambda: len(store.slaves) == 0)
    assert len(endings(caplog)) == 1
    assert re.search(r"it (sent nothing for|reported nothing)", endings(caplog)[0])


@pytest.mark.parametrize("how", ["closed", "killed", "silent", "half connected"])
def test_a_slave_that_has_gone_holds_nothing(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its connection nor a segment, though no other slave comes."""
    leaves = how in ("closed", "killed")
    patience = 3_600_000 if leaves else 1500  # who leaves is not waited for
    with mastering(tmp_path, ha_housekeeping_interval=patience) as (store, master):
        log = filled(store)
        before = len(open_segments(store))
        port = int(master.address.rpartition(":")[2])
        slaves = [PlainSlave(master.address) for _ in range(5)]
        if how != "half connected":
            for slave in slaves:
                slave.report(1)
            for slave in slaves:  # what was sent is there, even if the slave was given up since
                received(slave, len(log))
        if leaves:
            assert len(open_segments(store)) >= before + len(slaves)
            assert len(connections_at(port)) == len(slaves)
        for slave in slaves if leaves else ():
            if how == "killed":  # its system resets the connection
                linger = struct.pack("ii", 1, 0)
                slave.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            slave.connection.close()
        eventually(lambda: len(endings(caplog)) == len(slaves))
        eventually(lambda: not connections_at(port))
        eventually(lambda: len(open_segments(store)) == before)
        for slave in slaves:
            slave.connection.close()


def endings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a master has said of connections that it ended."""
    return [one for one in caplog.messages if one.startswith("The connection of the slave")]


def connections_at(port: int) -> list[object]:
    """The connections that this process has accepted at a port, and has not closed."""
    found = psutil.Process().net_connections("tcp")
    return [one for one in found if one.laddr.port == port and one.status != psutil.CONN_LISTEN]


def open_segments(store: StoreWriter) -> list[str]:
    """The segments of its log that this process has open, one for each descriptor."""
    folder = f"{store.path}/commitlog/"
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(folder)]


@pytest.mark.threat("Replication")
def test_a_slave_that_reads_a_little_now_and_then_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes at most 1 MB a second, and 4 MB must be taken in half a second."""
    # So that it makes room all the time: a system wakes a sender when a third of this is free.
    monkeypatch.setattr("rmqstore_spark.ha.slave_connection._SEND_BUFFER", 64 << 10)
    settings = {"ha_housekeeping_interval": 500, "ha_transfer_batch_size": (4 << 20) - 12}
    with mastering(tmp_path, mapped_file_size_commit_log=64 << 20, **settings) as (store, master):
        for _ in range(12):
            assert store.put(rows_block([bytes(1 << 20)])).ok
        with PlainSlave(master.address) as slave:
            slave.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
            taken = 0
            with suppress(ConnectionError):
                slave.report(1)
                while part := slave.connection.recv(10 << 10):
                    taken += len(part)
                    time.sleep(0.01)  # how fast it reads
                    slave.report(1)
            assert taken < store.published_end


@pytest.mark.threat("Replication")
def test_only_allowed_addresses_are_let_in(tmp_path: Path) -> None:
    given = {"ha_allowed_addresses": "10.0.0.0/8, 192.168.1.7"}
    with mastering(tmp_path, **given) as (store, master), PlainSlave(master.address) as slave:
        assert slave.is_closed()
        assert len(store.slaves) == 0


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with mastering(tmp_path / "one") as (_, master):
        port = int(master.address.rpartition(":")[2])
        refused = pytest.raises(ServiceError, match=f"{port}.*Set haListenPort")
        with refused, mastering(tmp_path / "two", ha_listen_port=port):
            pass


# ---- SYNC_MASTER ---------------------------------------------------------------------------------


def test_a_sync_master_answers_when_a_slave_has_it(tmp_path: Path) -> None:
    with mastering(tmp_path / "master", **{**SYNC, "slave_timeout": 20_000}) as (store, master):
        assert store.put(rows_block([b"alone"])).status is PutStatus.SLAVE_NOT_AVAILABLE
        given = {"ha_acknowledge": "true"}
        with following(tmp_path / "slave", master.address, **given) as (copy, _):
            eventually(lambda: store.slaves.is_available(store.published_end))
            for turn in range(5):
                result = store.put(rows_block([b"put%d" % turn]))
                assert result.ok
                assert copy.stats()["commitLogFlushedOffset"] >= result.end_offset
            commit_batch(store, 1)
            assert copy.replica.end == store.published_end
        end = store.published_end
        assert store.put(rows_block([b"alone"])).status is PutStatus.SLAVE_NOT_AVAILABLE
    log = log_bytes(tmp_path / "master", 0, end)
    assert log_bytes(tmp_path / "slave", 0, end) == log


def test_an_observer_acknowledges_nothing(tmp_path: Path) -> None:
    with mastering(tmp_path / "master", **SYNC) as (store, master):
        given = {"ha_send_heartbeat_interval": 50}
        with following(tmp_path / "slave", master.address, **given) as (copy, _):
            eventually(lambda: len(store.slaves) == 1)
            result = store.put(rows_block([b"one"]))
            assert result.status in (PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE)
            caught_up(copy, store.published_end)
            # It has repeated its first report by then: nothing is to be expected of it.
            eventually(lambda: not store.slaves.is_available(store.published_end))
            result = store.put(rows_block([b"two"]))
            assert result.status is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_slave_that_does_not_answer_costs_the_timeout_and_the_batch_stays_committed(
    tmp_path: Path,
) -> None:
    with mastering(tmp_path, **SYNC) as (store, master), PlainSlave(master.address) as slave:
        slave.report(1)
        eventually(lambda: len(store.slaves) == 1 and store.slaves.is_available(0))
        result = store.put(rows_block([b"one"]))
        assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
        assert "slaveTimeout (300 ms)" in result.remark
        with pytest.raises(RefusedError, match="The batch is committed, but") as caught:
            commit_batch(store, 7)
        assert caught.value.status == "FLUSH_SLAVE_TIMEOUT"
        assert store.stats()["commits"] == 1
        end = store.published_end
        received(slave, end)
        slave.report(end)
        eventually(lambda: store.slaves.held() == end)
        assert commit_batch(store, 7, attempt=1).status == "ALREADY_COMMITTED"


def test_a_slave_is_not_too_far_behind_because_of_a_batch_that_was_just_committed(
    tmp_path: Path,
) -> None:
    """It is waited for, by the commit, by a repeated commit, and by puts."""
    near = {**SYNC, "ha_slave_fallbehind_max": 1000}
    with mastering(tmp_path, **near) as (store, master), PlainSlave(master.address) as slave:
        store.put(rows_block([b"one"]))
        slave.report(1)
        received(slave, store.published_end)
        slave.report(store.published_end)
        eventually(lambda: store.slaves.held() == store.published_end)
        for attempt in range(2):
            with pytest.raises(RefusedError, match="The batch is committed, but") as caught:
                commit_batch(store, 7, attempt=attempt)
            assert caught.value.status == "FLUSH_SLAVE_TIMEOUT"
        assert store.stats()["commits"] == 1
        result = store.put(rows_block([b"behind it"]))
        assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
        # What was put since the batch counts.
        result = store.put(rows_block([b"x" * 2000]))
        assert result.status is PutStatus.SLAVE_NOT_AVAILABLE
        with pytest.raises(RefusedError, match="The batch is committed, but") as caught:
            commit_batch(store, 7, attempt=2)
        assert caught.value.status == "FLUSH_SLAVE_TIMEOUT"
        end = store.published_end
        received(slave, end)
        slave.report(end)
        eventually(lambda: store.slaves.held() == end)
        assert commit_batch(store, 7, attempt=3).status == "ALREADY_COMMITTED"


def test_a_slave_that_is_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    """Until it has caught up: then a put waits for it."""
    far = {**SYNC, "slave_timeout": 60_000, "ha_slave_fallbehind_max": 1000}
    with mastering(tmp_path, **far) as (store, master):
        store.put(rows_block([b"x" * 2000]))
        with PlainSlave(master.address) as slave:
            slave.report(1)
            received(slave, store.published_end)
            assert len(store.slaves) == 1
            result = store.put(rows_block([b"one"]))
            assert result.status is PutStatus.SLAVE_NOT_AVAILABLE
            assert "haSlaveFallbehindMax (1000 bytes) behind" in result.remark
            end = store.published_end
            received(slave, end)
            slave.report(end)
            eventually(lambda: store.slaves.held() == end)
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(store.put, rows_block([b"two"]))
                offset, data = slave.frame()
                slave.report(offset + len(data))
                assert waiting.result(60).ok


def test_a_client_repeats_a_commit_until_a_slave_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SYNC, "ha_listen_port": 0, "ha_slave_fallbehind_max": 1000}
    with (
        served(tmp_path / "master", **settings) as here,
        StoreClient(here.endpoint, retries=17) as client,
    ):
        master = Master(here.store)
        try:
            with client.stage_stream() as stream:
                stream.send(rows_block([b"x" * 2000]))
                request = CommitRequest(WriterId.of_stream("query", 1), (stream.finish(),))
            with ThreadPoolExecutor(1) as threads:
                answer = threads.submit(client.commit, request)
                eventually(lambda: "Trying again" in caplog.text)
                assert here.store.stats()["commits"] == 1
                assert not answer.done()
                given = {"ha_acknowledge": "true", "mapped_file_size_commit_log": 1 << 20}
                with following(tmp_path / "slave", master.address, **given):
                    assert answer.result(60).status == "ALREADY_COMMITTED"
        finally:
            master.close()


def test_a_slave_that_is_up_to_date_is_waited_for_however_large_a_batch_is(tmp_path: Path) -> None:
    settings = {**SYNC, "slave_timeout": 60_000, "ha_slave_fallbehind_max": 1000}
    with mastering(tmp_path / "master", **settings) as (store, master):
        assert store.put(rows_block([b"alone"])).status is PutStatus.SLAVE_NOT_AVAILABLE
        given = {"ha_acknowledge": "true", "mapped_file_size_commit_log": 1 << 20}
        with following(tmp_path / "slave", master.address, **given):
            eventually(lambda: store.slaves.held() == store.published_end)
            assert store.put(rows_block([b"y"])).ok
            assert commit_large(store).status == "COMMITTED"


def commit_large(store: StoreWriter) -> CommitResult:
    """Commit a batch of more bytes than a slave may lack."""
    stage = store.batches.begin_stage(uuid4().hex)
    stage.append(rows_block([b"z" * 3000]))
    return store.batches.commit(CommitRequest(WriterId.of_stream("query", 2), (stage.finish(),)))


def test_a_batch_reaches_a_slave_as_a_whole(tmp_path: Path) -> None:
    """While a batch is written, the log ends before it: a slave gets nothing of it."""
    with mastering(tmp_path) as (store, master):
        log = filled(store, 1)
        with PlainSlave(master.address) as slave:
            slave.report(1)
            received(slave, len(log))
            ends: list[int] = []
            writing = threading.Thread(target=commit_batch, args=(store, 99))
            writing.start()
            offset, data = slave.frame()
            ends.append(store.published_end)
            writing.join()
            assert offset == len(log)
            # The first byte that arrives belongs to a block that is published as a whole.
            assert ends == [store.published_end]
            assert data[4:8] == b"\xda\xa3\x20\xa7"


def test_two_slaves_have_the_same_log_and_queues(tmp_path: Path) -> None:
    with (
        mastering(tmp_path / "master") as (store, master),
        following(tmp_path / "a", master.address) as (one, _),
        following(tmp_path / "b", master.address) as (two, _),
    ):
        log = filled(store)
        caught_up(one, len(log))
        caught_up(two, len(log))
    for name in ("a", "b"):
        assert log_bytes(tmp_path / name, 0, len(log)) == log
        assert queue_files(tmp_path / name) == queue_files(tmp_path / "master")


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_slaves_are_not_sent_to_a_wildcard_address(tmp_path: Path, everywhere: str) -> None:
    with mastering(tmp_path, ha_bind_address=everywhere, broker_ip1="127.0.0.1") as (_, master):
        host, _, port = master.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
