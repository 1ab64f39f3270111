"""`rmqstore_spark.embedded`: a store process that lives as long as who started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rmqstore_spark
from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.reader import Store
from tests.support.processes.serving import block_of, eventually

FROM_ANOTHER_PROGRAM = """
import sys, rmqstore_spark
store = rmqstore_spark.embedded(sys.argv[1])
print(store.start(), store.pid, flush=True)
sys.stdin.readline()
"""


def put(endpoint: str, *bodies: bytes) -> None:
    with StoreClient(endpoint) as client, client.put_stream() as stream:
        assert stream.put(block_of(list(bodies))).is_ok


def bodies_in(path: Path) -> list[bytes]:
    with Store.open(path) as store:
        return [body for batch in store.scan() for body in batch.column("body").to_pylist()]


def environment_in(folder: Path) -> dict[str, str]:
    """For a program that is killed: what it leaves lies in a folder of the test."""
    return {**os.environ, "TMPDIR": str(folder)}


def pid_of(store: EmbeddedStore) -> int:
    assert store.pid is not None
    return store.pid


def is_gone(pid: int) -> bool:
    """No such process runs; one that waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    process = rmqstore_spark.embedded(tmp_path / "store")
    yield process
    process.stop()


def test_it_serves_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet"
    store = rmqstore_spark.embedded(path, flushDiskType="SYNC_FLUSH")
    with pytest.raises(ServiceError, match="call start"):
        _ = store.endpoint
    with store as endpoint:
        assert endpoint.startswith("rmq://127.0.0.1:")
        pid = pid_of(store)
        put(endpoint, b"one", b"two")
        assert (path / "abort").exists()
    assert is_gone(pid)
    assert store.pid is None
    assert not (path / "abort").exists()  # it was closed
    assert bodies_in(path) == [b"one", b"two"]


def test_it_ends_with_a_block_that_fails(tmp_path: Path) -> None:
    store = rmqstore_spark.embedded(tmp_path / "store")
    pids = []

    def fail() -> None:
        pids.append(pid_of(store))
        raise KeyError

    with pytest.raises(KeyError), store:
        fail()
    assert is_gone(pids[0])
    assert not (tmp_path / "store" / "abort").exists()


def test_settings_reach_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    settings = {"mappedFileSizeCommitLog": 1 << 20, "autoCreateTopicEnable": False}
    with rmqstore_spark.embedded(path, **settings) as endpoint, StoreClient(endpoint) as client:
        assert not client.open().auto_create_topic_enable
        client.create_topic("orders")
        put(endpoint, b"one")
    assert {file.stat().st_size for file in (path / "commitlog").glob("0*")} == {1 << 20}


def test_killed_it_starts_again_on_its_endpoint(store: EmbeddedStore, tmp_path: Path) -> None:
    """Promise 1: ASYNC_FLUSH, a kill of the process."""
    endpoint = store.start()
    put(endpoint, b"one")
    first = pid_of(store)
    store.kill()
    assert is_gone(first)
    assert store.start() == endpoint
    put(endpoint, b"two")
    second = pid_of(store)
    os.kill(second, signal.SIGKILL)  # by others
    eventually(lambda: store.pid is None)
    assert store.start() == endpoint
    assert "not closed cleanly" in store.output
    assert pid_of(store) not in (first, second)
    assert store.start() == endpoint  # runs already: nothing is done
    store.stop()
    store.stop()
    assert bodies_in(tmp_path / "store") == [b"one", b"two"]


def test_a_second_one_on_the_same_store_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    """Promise 7."""
    endpoint = store.start()
    second = rmqstore_spark.embedded(tmp_path / "store")
    with pytest.raises(ServiceError, match="open for writing in another process") as told, second:
        pass
    assert str(tmp_path / "store") in str(told.value)
    assert "Traceback" not in str(told.value)
    assert second.pid is None
    put(endpoint, b"one")


def test_what_it_cannot_start_with_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for wrong, said in (
            (rmqstore_spark.embedded(file), "is not a folder"),
            (rmqstore_spark.embedded(tmp_path / "a", flushDiskTyp="x"), "Did you mean"),
            (rmqstore_spark.embedded(tmp_path / "b", port=port), "listens there already"),
        ):
            with pytest.raises(ServiceError, match=said) as told:
                wrong.start()
            assert "Traceback" not in str(told.value)
            assert wrong.pid is None


def test_what_no_process_can_be_started_with_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rmqstore_spark.embedded(tmp_path / "store")
    for wrong in (
        rmqstore_spark.embedded(f"{tmp_path}/a\0b"),
        rmqstore_spark.embedded(tmp_path / "store", brokerName="a\0b"),
    ):
        with pytest.raises(OptionError, match=r"a\\x00b.*null byte"):
            wrong.start()
    for executable in ("", None, str(tmp_path / "python")):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(ServiceError, match=r"sys\.executable.*rmqstore serve"):
            store.start()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ServiceError, match=r"No such file.*TMPDIR"):
        store.start()
    monkeypatch.undo()
    assert store.pid is None
    assert not (tmp_path / "store").exists()
    assert store.start()  # it was not spoilt


def test_it_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rmqstore_spark.embedded(tmp_path / "store", ready_seconds=0.1)
    before = set(psutil.Process().children())
    # Its Python stands still: however late this process looks, it is not ready.
    (tmp_path / "sitecustomize.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServiceError, match=r"within 0\.1 s.*ready_seconds"):
        store.start()
    assert store.pid is None
    assert set(psutil.Process().children()) <= before


@pytest.mark.fault
@pytest.mark.parametrize("end", ["exit", "SIGTERM", "SIGKILL"])
def test_it_ends_with_the_program_that_started_it(tmp_path: Path, end: str) -> None:
    path = tmp_path / "store"
    program = subprocess.Popen(
        [sys.executable, "-c", FROM_ANOTHER_PROGRAM, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment_in(tmp_path),
    )  # fmt: skip
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        endpoint, pid = program.stdout.readline().split()
        put(endpoint, b"one")
        if end == "exit":
            program.stdin.close()
        else:
            program.send_signal(signal.Signals[end])
        program.wait(60)
    eventually(lambda: is_gone(int(pid)))
    assert not list(tmp_path.glob("rmqstore-*"))
    assert not (path / "abort").exists()  # it was closed, although its program was killed
    assert bodies_in(path) == [b"one"]
    with rmqstore_spark.embedded(path) as endpoint:
        put(endpoint, b"two")


@pytest.mark.fault
def test_its_program_is_killed_before_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", FROM_ANOTHER_PROGRAM, str(path)]
    with subprocess.Popen(command, env=environment_in(tmp_path)) as program:
        (child,) = eventually(psutil.Process(program.pid).children)
        program.kill()
    eventually(lambda: is_gone(child.pid))
    assert not list(tmp_path.glob("rmqstore-*"))
    assert not (path / "abort").exists()
