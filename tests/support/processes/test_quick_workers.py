"""The processes that Spark starts are forks of one, and end as they would without."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.support.processes.surroundings import path_with_quick_workers
from tests.support.stores.storing import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are Spark's own")
Daemon = tuple["subprocess.Popen[bytes]", psutil.Process]


def start() -> Daemon:
    """Start a daemon as Spark does; returns the process, and the one that listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"],
        env=os.environ | {"PYTHONPATH": path_with_quick_workers()},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    (port,) = struct.unpack(">i", process.stdout.read(4))
    (listening,) = (
        each.pid
        for each in psutil.net_connections("tcp4")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    )
    assert listening is not None
    return process, psutil.Process(listening)


def end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


@pytest.fixture
def daemons() -> Iterator[tuple[Daemon, Daemon]]:
    with ExitStack() as stack:
        both = start(), start()
        parents = {listening.parent() for _, listening in both} - {psutil.Process()}
        # Else a daemon of the next test may meet one that is about to end, and do without it.
        stack.callback(lambda: psutil.wait_procs([each for each in parents if each], 60))
        for process, listening in both:
            stack.enter_context(process)  # closes the streams, and waits
            stack.callback(process.kill)
            stack.callback(end, listening)
        yield both


def test_all_are_forks_of_one_that_ends_with_the_jvm(daemons: tuple[Daemon, Daemon]) -> None:
    (first, one), (second, other) = daemons
    forking = one.parent()
    assert forking is not None
    assert forking == other.parent()
    assert {one.pid, other.pid}.isdisjoint({first.pid, second.pid})
    assert not any("rmqstore_spark" in each.path for each in one.memory_maps())
    for process, _ in daemons:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    assert psutil.wait_procs([one, other, forking], 60)[1] == []


def test_one_that_is_terminated_takes_its_daemon_along(daemons: tuple[Daemon, Daemon]) -> None:
    (first, one), (_, other) = daemons
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    assert psutil.wait_procs([one], 60)[1] == []
    assert other.is_running()


def test_one_that_is_terminated_when_its_daemon_has_ended_ends_too(
    daemons: tuple[Daemon, Daemon],
) -> None:
    process, daemon = daemons[0]
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    daemon.kill()
    assert psutil.wait_procs([daemon], 60)[1] == []
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)  # the one that forks has it open too
    assert not process.stderr.read()
