"""Tasks that Spark itself tries again, and those that it runs twice at once (promise 2)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from tests.datasource.sink.attempts_driver import PARTITIONS, WRITES
from tests.datasource.sink.serving import Served
from tests.support.processes.jvm import quick_java
from tests.support.processes.surroundings import path_with_quick_workers

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.fault]


def environment() -> dict[str, str]:
    """Of the driver, and of executors, which import the driver's module."""
    return {
        **os.environ,
        **quick_java(),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{path_with_quick_workers()}:{ROOT}",
        "SPARK_DAEMON_MEMORY": "256m",
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A cluster of two machines with a core each, by two addresses of this one.

    Spark speculates in clusters only, and never twice on one host.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        port_of = ("--port", str(port), "--webui-port", "0")
        start(stack, "master.Master", "--host", "127.0.0.1", *port_of)
        room = ("--cores", "1", "--memory", "600m", "--webui-port", "0")
        for host in ("127.0.0.1", "127.0.0.2"):
            work = ("--work-dir", str(tmp_path / f"work-{host}"))
            start(stack, "worker.Worker", "--host", host, *room, *work, master)
        yield master


def start(stack: ExitStack, name: str, *arguments: str) -> None:
    """Start a part of a cluster, which ends with the stack."""
    home = Path(pyspark.__file__).parent
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
        env={**environment(), "SPARK_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)

    stack.callback(end)


def test_attempts_that_fail_and_attempts_that_are_overtaken_leave_each_row_once(
    served: Served, tmp_path: Path, cluster: str
) -> None:
    settings = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    given = {
        "endpoint": served.endpoint, "folder": str(tmp_path), "master": cluster,
        "settings": settings,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.datasource.sink.attempts_driver", json.dumps(given)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.stdout.endswith("ended\n"), done.stdout + done.stderr
    # Which attempts there are is for Spark to decide. Of each of these partitions, one attempt that
    # had staged all rows has come to nothing, and another one has ended well.
    for topic, go, _ in WRITES:
        for partition in range(PARTITIONS) if go == "fail" else (0,):
            assert (tmp_path / topic / f"{partition}-first").exists()
            assert len(list((tmp_path / topic).glob(f"{partition}-staged-*"))) >= 2
