from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmqstore_spark.engine.lock import StoreLock
from rmqstore_spark.errors import StoreLockedError, StoreWriteError
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.reader.log.end import is_locked

# Java's FileChannel.tryLock(0, 1), as a broker takes it, is a POSIX lock of byte 0.
_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "a+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("held", flush=True)
sys.stdin.read()
"""
_OURS = """
import sys
from rmqstore_spark.engine.lock import StoreLock
StoreLock(sys.argv[1]).take()
print("held", flush=True)
sys.stdin.read()
"""


def start(program: str, store: Path) -> tuple[subprocess.Popen[str], str]:
    """A process that takes the lock, and what it says of that."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("program", [_BROKER, _OURS], ids=["broker", "ours"])
def test_promise_7_a_store_in_use_is_refused_until_its_process_ends(
    tmp_path: Path, program: str
) -> None:
    process, said = start(program, tmp_path)
    try:
        assert said == "held"
        assert is_locked(LocalFiles(), str(tmp_path))
        with pytest.raises(StoreLockedError, match="Stop that one first"):
            StoreLock(str(tmp_path)).take()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with StoreLock(str(tmp_path)) as lock:
            assert lock.is_held
    finally:
        process.kill()
        process.communicate()


def test_promise_7_a_broker_is_refused_while_we_hold_it(tmp_path: Path) -> None:
    with StoreLock(str(tmp_path)) as lock:
        # A POSIX lock would be lost here.
        os.close(os.open(lock.path, os.O_RDWR))
        process, said = start(_BROKER, tmp_path)
        process.communicate("")
        assert said == "refused"
    process, said = start(_BROKER, tmp_path)
    process.communicate("")
    assert said == "held"


def test_promise_7_a_second_writer_of_this_process_is_refused(tmp_path: Path) -> None:
    with StoreLock(str(tmp_path)) as lock:
        lock.take()
        with pytest.raises(StoreLockedError):
            StoreLock(str(tmp_path)).take()
    assert not lock.is_held
    with StoreLock(str(tmp_path)):
        pass


def test_a_child_process_does_not_inherit_it(tmp_path: Path) -> None:
    with StoreLock(str(tmp_path)):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with StoreLock(str(tmp_path)):
            pass
    finally:
        child.communicate(b"\n")


def test_the_lock_file_is_for_its_user_alone_and_stays(tmp_path: Path) -> None:
    with StoreLock(str(tmp_path)) as lock:
        assert os.stat(lock.path).st_mode & 0o777 == 0o600
    assert os.path.exists(lock.path)


def test_no_lock_through_a_link_out_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreWriteError, match="lock"):
        StoreLock(str(tmp_path / "store")).take()
    assert not (tmp_path / "elsewhere").exists()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreWriteError, match="nowhere"):
        StoreLock(str(tmp_path / "nowhere")).take()
