"""Clients that do nothing, too many of them, and clients that go away."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StageStream, StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.wire.protocol import Code
from tests.support.processes.plainclient import PlainClient, head_of
from tests.support.processes.serving import Served, StoreProcess, block_of, eventually, served
from tests.support.waiting import NewThreads

ROOT = Path(__file__).resolve().parents[2]

IDLE = {"stream_idle_timeout": 1000, "max_streams": 8}
BLOCK = block_of([b"a"])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(
        tmp_path / "store", listen_socket=str(tmp_path / "run" / "store.sock"), **IDLE
    ) as found:
        yield found


def server_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def put_one(client: StoreClient) -> None:
    with client.put_stream() as stream:
        stream.put(BLOCK)


def raw_stream(endpoint: str) -> PlainClient:
    client = PlainClient(endpoint)
    client.begin(op="put")
    return client


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("place", ["endpoint", "socket"])
def test_an_idle_stream_is_ended(here: Served, place: str) -> None:
    with StoreClient(getattr(here, place), retries=0) as client:
        stream = client.put_stream()
        assert stream.put(BLOCK).is_ok
        eventually(lambda: here.server.calls_under_way == 0)
        with pytest.raises(RefusedError, match="streamIdleTimeout"):
            stream.put(BLOCK)
        stream.close()
        with client.put_stream() as again:
            assert again.put(BLOCK).is_ok
    assert here.store.stats()["putMessages"] == 2


@pytest.mark.parametrize("place", ["endpoint", "socket"])
def test_a_stream_that_is_used_now_and_then_goes_on(here: Served, place: str) -> None:
    """For longer than it may be idle."""
    until = time.monotonic() + 2.5 * IDLE["stream_idle_timeout"] / 1000
    with StoreClient(getattr(here, place), retries=0) as client, client.put_stream() as stream:
        while time.monotonic() < until:
            assert stream.put(BLOCK).is_ok


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("sent", [b"", head_of(Code.BLOCK, 5)[:20], head_of(Code.BLOCK, 3 << 20)])
def test_a_stream_in_which_nothing_is_sent_to_the_end_is_ended(here: Served, sent: bytes) -> None:
    with raw_stream(here.endpoint) as client:
        client.send(sent)
        eventually(lambda: here.server.calls_under_way == 1)
        eventually(lambda: here.server.calls_under_way == 0)
        (told,) = client.answers()
        assert "streamIdleTimeout" in told.remark
    assert here.server.room.used == 0


@pytest.mark.threat("Resource limits")
def test_a_reader_that_does_not_read_is_ended(here: Served) -> None:
    store = Path(here.store.path)
    (store / "index").mkdir(exist_ok=True)
    with (store / "index" / "large").open("wb") as large:
        large.truncate(256 << 20)
    asked = {"paths": ["index/large"], "counts": [1], "offsets": [0], "lengths": [256 << 20]}
    with PlainClient(here.endpoint) as client:
        assert not client.ask(Code.READ, asked).status
        eventually(lambda: here.server.calls_under_way == 0)
        assert sum(len(answer.body) for answer in client.answers()) < 256 << 20


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("place", ["endpoint", "socket"])
def test_more_streams_than_are_allowed_are_refused_at_once(tmp_path: Path, place: str) -> None:
    settings = {**IDLE, "stream_idle_timeout": 60_000}
    socket_path = str(tmp_path / "run" / "store.sock")
    with (
        served(tmp_path / "store", listen_socket=socket_path, **settings) as here,
        ExitStack() as opened,
    ):
        clients = [
            opened.enter_context(StoreClient(getattr(here, place), retries=0)) for _ in range(9)
        ]
        streams = [opened.enter_context(client.put_stream()) for client in clients[:8]]
        for stream in streams:
            assert stream.put(BLOCK).is_ok
        with pytest.raises(RefusedError, match="maxStreams") as failure:
            put_one(clients[8])
        assert failure.value.status == "OS_PAGECACHE_BUSY"
        # Actions still have their own room, and a place that is free again is taken.
        assert clients[8].stats()["putMessages"] == 8
        streams[0].finish()
        eventually(lambda: here.server.calls_under_way == 7)
        with clients[8].put_stream() as late:
            assert late.put(BLOCK).is_ok


def test_an_idle_stream_gives_way_to_a_new_one(tmp_path: Path) -> None:
    settings = {**IDLE, "stream_idle_timeout": 60_000}
    with served(tmp_path / "store", **settings) as here, ExitStack() as opened:
        for _ in range(8):
            opened.enter_context(raw_stream(here.endpoint))
        eventually(lambda: here.server.calls_under_way == 8)
        with StoreClient(here.endpoint, retries=10) as honest, honest.put_stream() as stream:
            assert stream.put(BLOCK).is_ok
            assert here.server.calls_under_way <= 8


def test_many_idle_streams_leave_no_thread(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        client.stats()
        held = [raw_stream(here.endpoint) for _ in range(8)]
        eventually(lambda: here.server.calls_under_way == 8)
        with_streams = server_threads()
        eventually(lambda: here.server.calls_under_way == 0)
        for one in held:
            one.close()
        eventually(lambda: server_threads() < with_streams)
        assert client.stats()["state"] == "RUNNING"


@pytest.mark.threat("Resource limits")
def test_connections_without_calls_are_ended_when_they_are_too_many(here: Served) -> None:
    port = here.server.endpoints[0].port
    with ExitStack() as opened:
        held = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)
        ]
        assert len(held) == 40
        eventually(lambda: here.server.connections <= IDLE["max_streams"] * 4)
    with StoreClient(here.endpoint) as client:
        assert client.stats()["state"] == "RUNNING"


def test_connections_leave_half_of_the_open_files_to_the_store(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 80
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            found = opened.enter_context(served(tmp_path / "store"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        port = found.server.endpoints[0].port
        for _ in range(few // 2 + 5):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually(lambda: found.server.connections <= few // 2)


CLIENT = """
import os, sys, time
from rmqstore_spark.client import StoreClient
from rmqstore_spark.client.streams import StageStream
from tests.support.processes.serving import block_of
client = StoreClient(sys.argv[1])
stream = client.stage_stream("0" * 31 + "1")
stream.send(block_of([b"staged"] * 100))
stream.drain()
print("staged", flush=True)
time.sleep(600)
"""


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("place", ["endpoint", "socket"])
def test_a_client_killed_in_the_middle_of_a_stage(tmp_path: Path, place: str) -> None:
    socket_path, threads = str(tmp_path / "run" / "store.sock"), NewThreads()
    with served(tmp_path / "store", listen_socket=socket_path) as here:
        command = [sys.executable, "-c", textwrap.dedent(CLIENT), getattr(here, place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"staged\n"
            assert here.store.stats()["stages"] == 1
            process.send_signal(signal.SIGKILL)
        eventually(lambda: here.server.calls_under_way == 0)
        assert here.store.stats()["stages"] == 0
        staging = Path(here.store.path, "rmqstore", "staging")
        eventually(lambda: not list(staging.iterdir()))
        assert not threads.named("watch", "acknowledgements")


def abort(client: StoreClient, stream: StageStream) -> None:
    client.abort([stream.finish().stage_id])


def commit(client: StoreClient, stream: StageStream) -> None:
    client.commit(CommitRequest(WriterId.of_one_write(), (stream.finish(),)))


def leave(_client: StoreClient, stream: StageStream) -> None:
    stream.close()


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("end", [abort, commit, leave])
def test_the_memory_of_staged_rows_goes_back_to_the_system(
    tmp_path: Path, end: Callable[[StoreClient, StageStream], None]
) -> None:
    """All but the 64 MiB of free memory that the process may keep; see `server.system`."""
    block = block_of([bytes(1 << 18)] * 16)
    with StoreProcess(tmp_path / "store", tmp_path, begin=subprocess.Popen) as process:
        process.ready()
        with StoreClient(process.endpoint) as client:
            client.open(["orders"])
            with client.put_stream() as puts:
                puts.send(block)
            before = resident(process)
            stream = client.stage_stream()
            for _ in range(38):
                stream.send(block)
            stream.drain()
            assert client.stats()["stagedMemoryBytes"] > 150 << 20
            assert resident(process) > before + (120 << 20)  # some of it was free before
            end(client, stream)
            eventually(lambda: client.stats()["stagedMemoryBytes"] == 0)
            eventually(lambda: resident(process) < before + (80 << 20))  # 5 s for the next stages


def resident(process: StoreProcess) -> int:
    """Bytes of memory that a process has."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10
