"""The real store process, stopped, and started again after a failed flush: promises 1, 2 and 5."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from tests.fault.claims import Claims
from tests.fault.messages import block
from tests.fault.remote import RemoteWriter, serve
from tests.fault.rounds.lives import EIO
from tests.fault.traces import injecting, why_no_strace
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

pytestmark = pytest.mark.fault


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
    claims.check(store, late_puts=True)


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
            with injecting(process.process.pid, tmp_path / "log", "fdatasync", EIO):
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
