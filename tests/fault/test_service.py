"""The real store process, killed, stopped and cut off from its clients: promises 1 and 2."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from tests.fault.claims import Claims
from tests.fault.messages import block
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.service import cut_connections, lost_answers, service_kills
from tests.fault.traces import is_traced, why_no_strace
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

pytestmark = pytest.mark.fault

KILLS = 4


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_at_any_time_and_started_again_on_its_port(tmp_path: Path, flush: str) -> None:
    """Promises 1 and 2: nothing acknowledged is lost; batches are whole and once."""
    tally = service_kills(tmp_path, KILLS, flush)
    tally.require_none()
    assert tally.acknowledged > 0


@pytest.mark.parametrize("what", ["put", "commit"])
def test_stopped_for_longer_than_its_clients_wait(tmp_path: Path, what: str) -> None:
    """Promise 2: a commit that they ask for again is not doubled; nor is a put by itself."""
    store, claims = tmp_path / "store", Claims()
    settings = ("syncFlushTimeout=200", "flushDiskType=SYNC_FLUSH", "streamIdleTimeout=1000")
    with serve(store, 0, *settings) as process:
        writer = RemoteWriter(process.endpoint, claims, timeout_s=1)
        writer.make_topics()
        writer.put(60)
        writer.commit(60)
        drawn = random.Random(what)
        for _ in range(2):
            holding = threading.Thread(
                target=hold_up, args=(process, writer, drawn.uniform(0, 0.02))
            )
            holding.start()
            while holding.is_alive():
                (writer.put if what == "put" else writer.commit)(400)
            holding.join()
            eventually(partial(is_running, process.endpoint))
            writer.commit(7)
        assert writer.failures > 0
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    claims.check(store)


def hold_up(process: StoreProcess, writer: RemoteWriter, after_s: float) -> None:
    """Stop a process at a random moment, until its client has waited for too long."""
    time.sleep(after_s)
    process.signal(signal.SIGSTOP)
    failures = writer.failures
    try:
        eventually(lambda: writer.failures > failures, 120)
    finally:
        process.signal(signal.SIGCONT)


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
def test_a_flush_fails_and_the_store_is_started_again(tmp_path: Path) -> None:
    """Promises 1, 2 and 5: a put whose fate is open is not sent again; a commit happens."""
    store, claims, port = tmp_path / "store", Claims(), free_port()
    writer = RemoteWriter(f"rmq://127.0.0.1:{port}", claims)
    sync = "flushDiskType=SYNC_FLUSH"
    with ThreadPoolExecutor(2) as threads:
        with serve(store, port, sync) as process:
            process.ready()
            writer.make_topics()
            writer.put(60)
            begun = claims.next_number
            claims.begin("put", begun, 60)
            with failing_flushes(process.process.pid, tmp_path / "log"):
                # A client with patience: it would be there when the store is back.
                putting = threads.submit(put_patiently, process.endpoint, begun, 60)
                eventually(lambda: is_failed(process.endpoint))
                committing = threads.submit(writer.commit, 400)
                eventually(lambda: writer.failures > 0)
            process.signal(signal.SIGKILL)
            process.process.wait()
        with serve(store, port, sync) as process:
            process.ready()
            assert committing.result(60).status in ("COMMITTED", "ALREADY_COMMITTED")
            error = putting.result(60)
            assert (error.status, error.is_open) == ("SERVICE_NOT_AVAILABLE", True)
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
    outcome = claims.compare(store)
    assert (outcome.lost, outcome.doubled) == (0, 0)


@contextmanager
def failing_flushes(pid: int, log: Path) -> Iterator[None]:
    """Let every flush of a process fail, from now on."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(log), "-p", str(pid),
         "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"],
    )  # fmt: skip
    try:
        eventually(lambda: is_traced(pid))
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def put_patiently(endpoint: str, first: int, count: int) -> RefusedError:
    """Put messages, with many retries; how the store says no."""
    with StoreClient(endpoint, retries=20) as client, client.put_stream() as stream:
        with pytest.raises(RefusedError) as failure:
            stream.put(block(first, count))
        stream.close()
        return failure.value


def is_failed(endpoint: str) -> bool:
    """Whether a store takes nothing any more."""
    with StoreClient(endpoint) as client:
        return bool(client.stats()["state"] == "FAILED")


def is_running(endpoint: str) -> bool:
    """Whether a new client gets an answer."""
    with StoreClient(endpoint) as client:
        return bool(client.stats()["state"] == "RUNNING")


def test_answers_that_are_lost(tmp_path: Path) -> None:
    """Promises 1 and 2.

    For a commit the client asks again by itself, and learns that it was done; of a put it learns
    that it does not know, and it does nothing by itself.
    """
    tally = lost_answers(tmp_path, 5)
    tally.require_none()
    assert tally.acknowledged == 3 * 400 + 2 * 120


def test_connections_cut_after_any_number_of_bytes(tmp_path: Path) -> None:
    """Promise 2, in each direction; and promise 1 of the puts in between."""
    tally = cut_connections(tmp_path, 16)
    tally.require_none()
    assert tally.faults > 6
