"""`rmqstore serve` as a process: how it starts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client import PutStream, StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.server.process import serve
from tests.support.processes.serving import StoreProcess, block_of, eventually
from tests.support.waiting import PATIENCE

SYNC = "--set=flushDiskType=SYNC_FLUSH"


def bodies_in(path: Path) -> list[bytes]:
    with Store.open(path) as store:
        batches = list(store.scan())
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def send_many(stream: PutStream, block: U1) -> None:
    for _ in range(500):
        stream.send(block)


def test_it_says_where_it_serves(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path, begin=subprocess.Popen) as process:
        ready = process.ready()
        assert ready["pid"] == process.process.pid
        assert ready["store"] == str(tmp_path / "store")
        with StoreClient(ready["endpoint"]) as client:
            assert client.stats()["state"] == "RUNNING"
        (line,) = process.output.splitlines()
        assert ready["endpoint"] in line
        assert ready["store"] in line
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert not process.ready_file.exists()


def test_it_takes_all_the_open_files_that_it_may_have(tmp_path: Path) -> None:
    def begin(arguments: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        # The limit is not set here: this process may have more of them open.
        return subprocess.Popen(["prlimit", "--nofile=256:", *arguments], **settings)

    with StoreProcess(tmp_path / "store", tmp_path, begin=begin) as process:
        process.ready()
        limits = Path(f"/proc/{process.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3] != "256"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_closes_the_store(tmp_path: Path, number: int) -> None:
    store = tmp_path / "store"
    with (
        StoreProcess(store, tmp_path) as process,
        StoreClient(process.endpoint) as client,
        client.put_stream() as stream,
    ):
        for _ in range(10):
            stream.put(block_of([b"kept"]))
        # The stream is open, and stays so: it does not hold the process up.
        process.signal(number)
        assert process.wait() == 0
        stream.close()
    assert not (store / "abort").exists()
    assert not (store / "commitlog" / "rmqstore-spark.guard").exists()
    assert bodies_in(store) == [b"kept"] * 10


def test_a_signal_that_another_thread_takes_wakes_the_main_thread(tmp_path: Path) -> None:
    main, ended = threading.get_ident(), threading.Event()

    def is_waiting() -> bool:
        at = sys._current_frames()[main].f_code
        return (at.co_filename, at.co_name) == (serve.__code__.co_filename, "wait")

    def tell() -> bool:
        eventually(is_waiting)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if ended.wait(PATIENCE):
            return True
        os.kill(os.getpid(), signal.SIGTERM)  # or the test would not end
        return False

    with ThreadPoolExecutor(1) as threads:
        woken = threads.submit(tell)
        serve(StoreConfig(store_path_root_dir=str(tmp_path / "store"), listen_port=0))
        ended.set()
        assert woken.result()


def test_a_client_stops_it(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as process:
        with StoreClient(process.endpoint) as client:
            client.stop()
        assert process.wait() == 0
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize("signals", [1, 2, 3])
def test_what_is_acknowledged_while_it_ends_is_kept(tmp_path: Path, signals: int) -> None:
    """Promise 1: however many signals it receives."""
    store = tmp_path / "store"
    kept, told = [], False
    with StoreProcess(store, tmp_path, SYNC) as process:
        with StoreClient(process.endpoint, retries=0) as client:
            stream = client.put_stream(on_ack=lambda ack: kept.append(ack.number))
            try:
                for number in range(1_000_000):
                    stream.send(block_of([b"%d" % number]))
                    if number >= 20 and kept and not told:
                        told = True
                        for _ in range(signals):
                            process.signal(signal.SIGTERM)
            except RmqStoreError:
                pass
            stream.close()
        assert process.wait() == 0
    assert len(kept) > 0
    found = bodies_in(store)
    assert found[: len(kept)] == [b"%d" % number for number in kept]


def test_a_killed_one_is_started_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with (
        StoreProcess(store, tmp_path, SYNC) as process,
        StoreClient(process.endpoint) as client,
        client.put_stream() as stream,
    ):
        for number in range(20):
            assert stream.put(block_of([b"%d" % number])).is_ok
        process.signal(signal.SIGKILL)
        process.wait()
        stream.close()
    assert (store / "abort").exists()
    with StoreProcess(store, tmp_path) as process:
        with StoreClient(process.endpoint) as client:
            assert client.stats()["commitLogMaxOffset"] > 0
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert bodies_in(store) == [b"%d" % number for number in range(20)]


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ["--store", str(tmp_path / "store"), "--port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "rmqstore_spark.cli", "serve", *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert f"127.0.0.1:{port}" in line
    assert "listens there already" in line
    assert not (tmp_path / "store" / "abort").exists()


def test_a_ready_file_that_cannot_be_written_is_told_before_the_store_is_opened(
    tmp_path: Path,
) -> None:
    """An existing file is not replaced: `--ready-file /dev/null` as root would take it away."""
    os.mkfifo(tmp_path / "pipe")
    config = StoreConfig(store_path_root_dir=str(tmp_path / "store"), listen_port=0)
    for name, why in (("no/ready.json", "folder"), ("pipe", "plain file"), ("", "plain file")):
        with pytest.raises(OptionError, match=why):
            serve(config, ready_file=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_configuration_that_lets_strangers_in_is_refused_before_the_store_is_opened(
    tmp_path: Path,
) -> None:
    with StoreProcess(tmp_path / "store", tmp_path, "--host", "0.0.0.0") as process:
        assert process.wait() == 2
        assert "may be unencrypted" in process.output
    assert not (tmp_path / "store").exists()


def test_a_url_is_no_place_for_a_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rmqstore_spark.cli", "serve", "--store", "rmq://127.0.0.1:1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert done.returncode != 0
    assert "is a URL" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.fault
def test_a_signal_breaks_a_recovery_off(tmp_path: Path) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path / "store"), listen_port=0)
    with StoreWriter.open(tmp_path / "store", config) as store:
        assert store.put(block_of([b"kept"])).ok
    (tmp_path / "store" / "abort").touch()
    said: list[str] = []
    with pytest.raises(ServiceError, match="recovers it again"):
        serve(
            config,
            announce=said.append,
            progress=lambda *_: os.kill(os.getpid(), signal.SIGTERM),
        )
    assert said == []
    StoreWriter.open(tmp_path / "store", config).close()
    assert bodies_in(tmp_path / "store") == [b"kept"]


def test_a_second_process_on_a_store_is_refused(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as first:
        first.ready()
        (tmp_path / "second").mkdir()
        with StoreProcess(tmp_path / "store", tmp_path / "second") as second:
            assert second.wait() != 0
            assert "open for writing in another process" in second.output
        with StoreClient(first.endpoint) as client:
            assert client.stats()["state"] == "RUNNING"


def test_it_ends_with_its_standard_input(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [
        *(sys.executable, "-m", "rmqstore_spark.cli", "serve", "--store", str(tmp_path / "store")),
        *("--port", "0", "--ready-file", str(ready), "--until-stdin-ends"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        eventually(ready.exists)
        os.kill(json.loads(ready.read_text())["pid"], 0)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
    assert not (tmp_path / "store" / "abort").exists()


def test_a_process_that_stands_still_is_given_up_in_time(tmp_path: Path) -> None:
    with (
        StoreProcess(tmp_path / "store", tmp_path) as process,
        StoreClient(process.endpoint, timeout_s=1, retries=0) as client,
    ):
        stream = client.put_stream()
        stream.put(block_of([b"before"]))
        process.signal(signal.SIGSTOP)
        with pytest.raises(RmqStoreError, match="within 1 s"):
            stream.put(block_of([b"during"]))
        with pytest.raises(RmqStoreError, match="within 1 s"):
            client.stats()
        stream.close()
        process.signal(signal.SIGCONT)
        with StoreClient(process.endpoint) as again:
            assert again.stats()["state"] == "RUNNING"


def test_blocks_that_do_not_fit_into_the_pipe_do_not_hang_a_client(tmp_path: Path) -> None:
    """Sending waits in the system, for a process that takes nothing."""
    large = block_of([bytes(1 << 19)])
    with (
        StoreProcess(tmp_path / "store", tmp_path) as process,
        StoreClient(process.endpoint, timeout_s=1, retries=0) as client,
    ):
        stream = client.put_stream(max_in_flight_bytes=1 << 30)
        stream.put(large)
        process.signal(signal.SIGSTOP)
        with pytest.raises(RmqStoreError, match="within 1 s"):
            send_many(stream, large)
        stream.close()
